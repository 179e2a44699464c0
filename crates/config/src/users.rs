//! The users that the configuration names: by `requirepass`, by `user` lines, or in a file of their own.

use super::{Config, Directive, Live, Observer};
use acl::{Acl, User};
use std::path::PathBuf;
use std::sync::Arc;

impl Config {
    /// The path of the file of users (`aclfile`). None: there is none.
    pub fn aclfile(&self) -> Option<PathBuf> {
        let name = self.live.aclfile.string();
        (!name.is_empty()).then(|| PathBuf::from(self.live.dir.string()).join(name))
    }

    /// Reads the file of users. Blocks on the disk. Errors: the text for the client, in Redis's words.
    pub fn read_aclfile(&self) -> Result<Vec<User>, String> {
        let Some(path) = self.aclfile() else { return Ok(Vec::new()) };
        let shown = self.live.aclfile.string();
        let text = std::fs::read(&path)
            .map_err(|error| format!("Error loading ACLs, opening file '{shown}': {error}"))?;
        acl::parse(&text, &shown, self.live.acl_all_channels())
    }

    /// The users of a server that starts; `requirepass` sets the password of `default` from then on. Blocks on
    /// the disk.
    ///
    /// # Errors
    /// The file cannot be read or has mistakes; both the file and `user` lines are configured.
    pub fn start_users(&self) -> Result<Arc<Acl>, String> {
        let acl = Arc::new(Acl::default());
        let password = self.live.requirepass.get();
        if !password.is_empty() {
            acl.require(&password);
        }
        let listed = self.users();
        if self.aclfile().is_some() {
            if !listed.is_empty() {
                return Err(
                    "users are configured both by 'user' lines and by 'aclfile': choose one of them".into()
                );
            }
            acl.replace(self.read_aclfile()?);
        } else if !listed.is_empty() {
            acl.replace(listed.to_vec());
        }
        self.observe(Box::new(Password(acl.clone())));
        Ok(acl)
    }

    /// The words of the `user` lines of CONFIG REWRITE; None: the users are in a file of their own. O(users).
    pub fn user_lines(&self, acl: &Acl) -> Option<Vec<Vec<Vec<u8>>>> {
        let words =
            |user: &Arc<User>| user.line().split(|byte| *byte == b' ').skip(1).map(<[u8]>::to_vec).collect();
        self.aclfile().is_none().then(|| acl.all().iter().map(words).collect())
    }
}

/// Lets `requirepass` set the password of `default`.
struct Password(Arc<Acl>);

impl Observer for Password {
    fn changed(&self, directive: &Directive, live: &Live) {
        if directive.name == "requirepass" {
            self.0.require(&live.requirepass.get());
        }
    }
}
