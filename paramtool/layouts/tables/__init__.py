"""The layouts that come with paramtool: one file a library, each with a tuple LAYOUTS."""
