"""What makes data of the package: run by its maintainers, with the libraries that the data are of."""
