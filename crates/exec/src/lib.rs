//! Runs commands: plan, session, transactions, blocking, pub/sub, workers.
