//! What every engine must hold (`suite`), and what each holds beside it, with real engines where there are any.

mod children;
mod etcd;
mod files;
mod suite;
