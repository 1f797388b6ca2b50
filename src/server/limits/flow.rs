//! The accounts for limits: authenticated users by name, others by their network address, nested.
//!
//! A network has any number of IPv6 addresses and subnets: so all unauthenticated clients together share what one user gets, among
//! them sites (/48) share equally, within a site its subnets (/64), and within a subnet its addresses. An IPv4 address is a single
//! level.

use std::collections::{BTreeSet, HashMap};
use std::net::IpAddr;
use std::sync::Arc;

use podwright_api::User;

/// A user, or one of the levels around an unauthenticated client.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Step {
    Named(String),
    Unknown,
    Site(u128),
    Subnet(u128),
    Address(u128),
}

/// The account, and the levels that it is nested in: the outermost first.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Flow(Arc<[Step]>);

/// The first bits of an IPv6 address.
const fn first(bits: u32) -> u128 {
    u128::MAX << (128 - bits)
}

/// The common prefix of all IPv4 addresses (`::ffff:0:0/96`).
const V4: u128 = 0xffff << 32;

impl Step {
    /// The enclosing level.
    pub fn within(&self) -> Option<Step> {
        match self {
            Step::Named(_) | Step::Unknown => None,
            Step::Site(_) => Some(Step::Unknown),
            Step::Subnet(bits) => Some(Step::Site(bits & first(48))),
            Step::Address(bits) if bits & first(96) == V4 => Some(Step::Unknown),
            Step::Address(bits) => Some(Step::Subnet(bits & first(64))),
        }
    }
}

impl Flow {
    /// From the outermost to the account itself.
    pub fn steps(&self) -> &[Step] {
        &self.0
    }

    /// The account itself. (There is always one.)
    pub fn last(&self) -> &Step {
        &self.0[self.0.len() - 1]
    }
}

impl From<&str> for Flow {
    fn from(name: &str) -> Flow {
        Flow(Arc::new([Step::Named(name.to_owned())]))
    }
}

impl From<&String> for Flow {
    fn from(name: &String) -> Flow {
        name.as_str().into()
    }
}

impl From<&Flow> for Flow {
    fn from(flow: &Flow) -> Flow {
        flow.clone()
    }
}

impl From<&User> for Flow {
    fn from(user: &User) -> Flow {
        match user.address {
            Some(address) if user.impersonator.is_none() && user.is_in("system:unauthenticated") => address.into(),
            _ => user.counted_as().into(),
        }
    }
}

impl From<IpAddr> for Flow {
    fn from(address: IpAddr) -> Flow {
        let bits = match address.to_canonical() {
            IpAddr::V4(v4) => v4.to_ipv6_mapped().to_bits(),
            IpAddr::V6(v6) => v6.to_bits(),
        };
        let mut steps = vec![Step::Address(bits)];
        while let Some(around) = steps[0].within() {
            steps.insert(0, around);
        }
        Flow(steps.into())
    }
}

/// What unauthenticated clients hold, by increasing numbers: decides what must go if it is too much.
#[derive(Default)]
pub(crate) struct Crowd {
    within: HashMap<Step, BTreeSet<u64>>,
    /// The contents of each level, ordered by how much they hold.
    order: BTreeSet<(Step, usize, Step)>,
}

impl Crowd {
    pub fn enter(&mut self, flow: &Flow, number: u64) {
        self.change(flow, |held| held.insert(number));
    }

    pub fn leave(&mut self, flow: &Flow, number: u64) {
        self.change(flow, |held| held.remove(&number));
    }

    fn change(&mut self, flow: &Flow, change: impl Fn(&mut BTreeSet<u64>) -> bool) {
        for step in flow.steps() {
            let held = self.within.entry(step.clone()).or_default();
            let before = held.len();
            change(held);
            let after = held.len();
            if after == 0 {
                self.within.remove(step);
            }
            if let Some(around) = step.within() {
                self.order.remove(&(around.clone(), before, step.clone()));
                if after > 0 {
                    self.order.insert((around, after, step.clone()));
                }
            }
        }
    }

    /// How much there is in total.
    #[cfg(test)]
    pub fn count(&self) -> usize {
        self.held(&Step::Unknown)
    }

    fn held(&self, step: &Step) -> usize {
        self.within.get(step).map_or(0, BTreeSet::len)
    }

    /// The largest holder in a level.
    fn largest(&self, place: &Step) -> Option<(usize, &Step)> {
        let all =
            (place.clone(), 0, Step::Named(String::new()))..=(place.clone(), usize::MAX, Step::Address(u128::MAX));
        self.order.range(all).next_back().map(|(_, held, step)| (*held, step))
    }

    /// What is held where one must go for a newcomer: in the site that holds most, there in its largest subnet and address; if all
    /// hold one, in all of them. And whether that is the newcomer's own place: nobody holds more than it would.
    pub fn giving_way(&self, newcomer: &Flow) -> Option<(&BTreeSet<u64>, bool)> {
        let (mut place, mut is_own, mut depth) = (newcomer.steps().first()?, true, 0);
        while let Some((held, largest)) = self.largest(place) {
            depth += 1;
            let own = newcomer.steps().get(depth).filter(|_| is_own);
            let of_own = own.map_or(0, |own| self.held(own));
            match own {
                Some(own) if held < of_own + 2 && of_own > 0 => place = own,
                _ if held < 2 => break,
                _ => (place, is_own) = (largest, false),
            }
        }
        Some((self.within.get(place)?, is_own))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn flow(address: &str) -> Flow {
        address.parse::<IpAddr>().unwrap().into()
    }

    fn crowd(all: &[&str]) -> Crowd {
        let mut crowd = Crowd::default();
        (0..).zip(all).for_each(|(number, address)| crowd.enter(&flow(address), number));
        crowd
    }

    fn loser(all: &[&str], newcomer: &str) -> (u64, bool) {
        let crowd = crowd(all);
        let (held, is_own) = crowd.giving_way(&flow(newcomer)).unwrap();
        (*held.first().unwrap(), is_own)
    }

    #[test]
    fn an_address_is_in_a_subnet_of_a_site() {
        let steps = |address: &str| flow(address).steps().len();
        assert_eq!([steps("10.0.0.1"), steps("::ffff:10.0.0.1"), steps("2001:db8::1")], [2, 2, 4]);
        assert_eq!(flow("10.0.0.1"), flow("::ffff:10.0.0.1"));
        let shared = |a: &str, b: &str| {
            let (a, b) = (flow(a), flow(b));
            a.steps().iter().zip(b.steps()).take_while(|(a, b)| a == b).count()
        };
        assert_eq!(shared("2001:db8::1", "2001:db8::2"), 3);
        assert_eq!(shared("2001:db8::1", "2001:db8:0:1::1"), 2);
        assert_eq!(shared("2001:db8::1", "2001:db8:1::1"), 1);
        let mut user = User::new("system:anonymous", ["system:unauthenticated"]);
        assert_eq!(Flow::from(&user), "system:anonymous".into());
        user.address = Some([10, 0, 0, 1].into());
        assert_eq!(Flow::from(&user), flow("10.0.0.1"));
        user.groups.clear();
        assert_eq!(Flow::from(&user), "system:anonymous".into(), "who is known is counted by his name, wherever he is");
    }

    #[test]
    fn whoever_holds_most_gives_way_by_site_then_subnet_then_address() {
        let (one, other) = ("10.0.0.1", "10.0.0.2");
        // Any number of addresses, in any number of subnets.
        let site = ["2001:db8:0:1::1", "2001:db8:0:2::1", "2001:db8:0:3::1"];
        assert_eq!(loser(&[one, site[0], site[1], site[2]], other), (1, false), "a site is no more than an address");
        assert_eq!(loser(&[one, site[0], site[1], site[2]], one), (1, false));
        let mixed = ["2001:db8:0:1::1", "2001:db8:0:2::1", "2001:db8:0:2::2", "2001:db8:0:2::2"];
        assert_eq!(loser(&mixed, one), (2, false), "of the subnet that has most, the address that has most");
        assert_eq!(loser(&mixed, mixed[0]), (2, false), "a neighbour is no worse off than others");
        assert_eq!(loser(&[site[0], one], other), (0, true), "of many who have one each, the oldest");
        assert_eq!(loser(&[site[0], one], one), (1, true), "his own, where nobody has more");
    }

    #[test]
    fn who_has_gone_leaves_no_trace() {
        let all = ["10.0.0.1", "2001:db8::1", "2001:db8::1"];
        let mut crowd = crowd(&all);
        crowd.leave(&flow(all[1]), 7);
        assert_eq!(crowd.held(&Step::Unknown), 3, "what nobody holds changes nothing");
        (0..).zip(all).for_each(|(number, address)| crowd.leave(&flow(address), number));
        assert!(crowd.within.is_empty() && crowd.order.is_empty());
        assert!(crowd.giving_way(&flow(all[0])).is_none());
    }
}
