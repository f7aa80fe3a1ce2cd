"""The tools for models and machines behind the command line; speech itself needs none of them."""
