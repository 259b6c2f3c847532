//! News from the kernel: somebody has changed links, routes or rules.
//!
//! Must be made within a tokio runtime; the only part of the crate that does not block.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};

use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

use crate::message::{Message, Messages};
use crate::{Error, Protocol, Socket};

/// A multicast group of the kernel's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Group {
    Link,
    Ipv4Address,
    Ipv4Route,
    Ipv6Address,
    Ipv6Route,
    /// Changes of nf_tables.
    Nftables,
}

impl Group {
    fn number(self) -> u32 {
        match self {
            Self::Link => 1,
            Self::Ipv4Address => 5,
            Self::Ipv4Route => 7,
            Self::Ipv6Address => 9,
            Self::Ipv6Route => 11,
            Self::Nftables => 7,
        }
    }
}

/// A subscription. News that arrive faster than they are read may be lost, but never unnoticed.
#[derive(Debug)]
pub struct Monitor {
    fd: AsyncFd<OwnedFd>,
    groups: Vec<Group>,
    buffer: Vec<u8>,
}

impl Monitor {
    pub fn open(protocol: Protocol, groups: &[Group]) -> Result<Self, Error> {
        let fd = Socket::open(protocol)?.into_fd();
        set_nonblocking(&fd)?;
        // SAFETY: an owned descriptor stays open and the same for as long as it is owned.
        let registered = unsafe { AsyncFd::register_with_interest(fd, Interest::READABLE) };
        let fd = registered.map_err(|error| Error::Socket {
            what: "watch",
            source: error.into(),
        })?;
        let monitor = Self {
            fd,
            groups: groups.to_vec(),
            buffer: vec![0; 64 * 1024],
        };
        monitor.resume()?;
        Ok(monitor)
    }

    /// Hears nothing until [`Monitor::resume`]: for the time of our own changes.
    pub fn pause(&self) -> Result<(), Error> {
        self.membership(libc::NETLINK_DROP_MEMBERSHIP)
    }

    pub fn resume(&self) -> Result<(), Error> {
        self.membership(libc::NETLINK_ADD_MEMBERSHIP)
    }

    /// Returns once `interesting` accepts a message, or news were lost. What else has arrived by
    /// then is read as well.
    pub async fn changed(
        &mut self,
        mut interesting: impl FnMut(&Message<'_>) -> bool,
    ) -> Result<(), Error> {
        loop {
            let mut ready = self.fd.readable().await.map_err(receive_error)?;
            let mut found = false;
            loop {
                match receive(ready.get_inner(), &mut self.buffer) {
                    Ok(length) => {
                        found |= Messages(&self.buffer[..length]).any(|m| interesting(&m));
                    }
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                    Err(error) if error.raw_os_error() == Some(libc::ENOBUFS) => found = true,
                    Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                    Err(error) => return Err(receive_error(error)),
                }
            }
            ready.clear_ready();
            if found {
                return Ok(());
            }
        }
    }

    fn membership(&self, option: libc::c_int) -> Result<(), Error> {
        for group in &self.groups {
            let number = group.number();
            // SAFETY: pointer and length describe `number`.
            let result = unsafe {
                libc::setsockopt(
                    self.fd.get_ref().as_raw_fd(),
                    libc::SOL_NETLINK,
                    option,
                    (&raw const number).cast(),
                    size_of::<u32>() as u32,
                )
            };
            if result != 0 {
                return Err(Error::socket("join or leave a group"));
            }
        }
        Ok(())
    }
}

fn receive_error(source: io::Error) -> Error {
    Error::Socket {
        what: "receive",
        source,
    }
}

fn receive(fd: &OwnedFd, buffer: &mut [u8]) -> io::Result<usize> {
    // SAFETY: the buffer is valid for its length.
    let received =
        unsafe { libc::recv(fd.as_raw_fd(), buffer.as_mut_ptr().cast(), buffer.len(), 0) };
    usize::try_from(received).map_err(|_| io::Error::last_os_error())
}

fn set_nonblocking(fd: &OwnedFd) -> Result<(), Error> {
    rustix::io::ioctl_fionbio(fd, true).map_err(|errno| Error::Socket {
        what: "watch",
        source: errno.into(),
    })
}
