"""Text on its way in: clean-up and segmentation, incremental and linear in time."""
