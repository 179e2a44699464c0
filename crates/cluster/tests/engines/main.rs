//! The promises of every engine (`suite`), and of each beside it, with real engines where there are any.

mod children;
mod etcd;
mod files;
mod kubernetes;
mod stub;
mod suite;
