//! Exact synthesis: the cheapest program of a graph for fixed splits and prices.

pub mod solver;
