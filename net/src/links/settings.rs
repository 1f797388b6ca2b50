//! The kernel's settings of our links, as attributes.

use rtnetlink::packet_core::{DefaultNla, Emitable, NLA_F_NESTED};
use rtnetlink::packet_route::link::{AfSpecInet6, AfSpecUnspec, In6AddrGenMode};

// linux/if_link.h, linux/ip.h
const IFLA_INET_CONF: u16 = 1;
pub(super) const IPV4_DEVCONF_FORWARDING: u16 = 1;
pub(super) const IPV4_DEVCONF_SEND_REDIRECTS: u16 = 6;
pub(super) const IPV4_DEVCONF_RP_FILTER: u16 = 8;

/// Settings of the host's end: it forwards, sends no redirects, and accepts from the Pod only packets with its own source address
/// (the only one routed back over this link).
pub(super) const HOST_END: &[(u16, u32)] =
    &[(IPV4_DEVCONF_FORWARDING, 1), (IPV4_DEVCONF_SEND_REDIRECTS, 0), (IPV4_DEVCONF_RP_FILTER, 1)];

/// [`HOST_END`] as an attribute; the crate's own type (`DevConfRequest`) cannot express 0.
pub(super) fn host_end_settings() -> DefaultNla {
    let settings = HOST_END.iter().map(|(setting, value)| DefaultNla::new(*setting, value.to_ne_bytes().to_vec()));
    let settings: Vec<DefaultNla> = settings.collect();
    let mut bytes = vec![0; settings.as_slice().buffer_len()];
    settings.as_slice().emit(&mut bytes);
    DefaultNla::new(IFLA_INET_CONF | NLA_F_NESTED, bytes)
}

/// `addrgenmode none`: the link gets no address of its own.
pub(super) fn generates_none() -> AfSpecUnspec {
    AfSpecUnspec::Inet6(vec![AfSpecInet6::AddrGenMode(In6AddrGenMode::None)])
}
