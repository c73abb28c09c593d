"""The record of a decode."""
