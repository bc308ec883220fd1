//! The library for C: its header, and a program that uses it.

mod header;
mod rack;
