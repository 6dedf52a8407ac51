//! Rules of the repository: what its pages say is there, its modules and packages are those it lists.

mod coverage;
mod dependencies;
mod docs;
mod vector_levels;
