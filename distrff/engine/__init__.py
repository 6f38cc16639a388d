"""Runs any reduction over rows, in this process or on a cluster; knows no map, format or solver."""
