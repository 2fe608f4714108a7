"""Data in and out: matrices at the door, DSSTNE's netCDF and text files, ratings, and splits of them."""

from sparsenet.data.dataset import Dataset, canonical
from sparsenet.data.netcdf import read_netcdf, write_netcdf
from sparsenet.data.ratings import Purchases, Ratings, online_retail, read_ratings
from sparsenet.data.recommendations import read_recommendations, write_recommendations
from sparsenet.data.splits import HeldOut, Split, strong_generalization
from sparsenet.data.text import Text, read_index, read_text, write_index, write_text

__all__ = [
    "Dataset",
    "HeldOut",
    "Purchases",
    "Ratings",
    "Split",
    "Text",
    "canonical",
    "online_retail",
    "read_index",
    "read_netcdf",
    "read_ratings",
    "read_recommendations",
    "read_text",
    "strong_generalization",
    "write_index",
    "write_netcdf",
    "write_recommendations",
    "write_text",
]
