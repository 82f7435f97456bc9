package jobs

import (
	"errors"
	"fmt"
	"net/netip"

	"github.com/psidecar/psidecar/internal/reason"
)

// visitor is a link over which letters come. It remembers which hosts the proxy at its other end
// speaks for, so that each is verified once.
type visitor struct {
	jobs  *Jobs
	from  Peer            // nil: not verified
	at    string          // address of this host at which the link arrived
	known map[string]bool // hosts that it speaks for; at most maxNames
}

// maxNames bounds the names of one host that a link remembers.
const maxNames = 64

// believe returns nil if a letter comes from the host of its sender, and has arrived at the host of
// its receiver.
func (v *visitor) believe(x *job, l *letter) error {
	if v.from == nil || v.known[l.from] && l.to == v.at {
		return nil
	}
	why := v.check(l)
	if why == nil {
		if len(v.known) < maxNames {
			v.known[l.from] = true
		}
		return nil
	}
	v.jobs.refuse(claimLetter, "a letter between sites was refused, and its link closed", "job", x.name, "from", l.from, "to", l.to, "error", why)
	return reason.Errorf(reason.Forged, "a letter in the name of %s: %w", l.from, why)
}

// check verifies a letter's sender and receiver, over the network if need be.
func (v *visitor) check(l *letter) error {
	host, err := netip.ParseAddr(l.from)
	if err != nil {
		return errors.New("its sender is no address")
	}
	if l.to != v.at {
		return fmt.Errorf("it is for %s, and arrived at %s", l.to, v.at)
	}
	return v.jobs.from(v.from, host.Unmap())
}
