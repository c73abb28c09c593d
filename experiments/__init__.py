"""Programs that are run by hand: training of the mini models, measurements, reports."""
