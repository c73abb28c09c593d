"""Where a sweep decodes its samples."""
