package compact

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"sync"

	"github.com/psidecar/psidecar/proxy/codec/keylist"
	"github.com/psidecar/psidecar/proxy/codec/shared"
	"github.com/psidecar/psidecar/proxy/relay"
)

// Codec makes the Senders and Receivers of this proxy's links. It is safe for
// concurrent use.
//
// All links to one instance of another proxy share a Peer, and the links of one job
// to it share a group (see share.go). mu is held while links open and close, and
// while groups are informed of the links that exist, which takes the locks of groups
// and stores. Those reserve memory while they hold their own, so kept has a lock of
// its own, keeping, which is taken last.
type Codec struct {
	limits Limits
	stores *shared.Stores

	mu     sync.Mutex // guards peers, groups, past and idle
	peers  map[relay.Instance]*known
	groups map[scope]*group
	past   shared.Counts // of groups that have ended

	keeping sync.Mutex       // guards kept; after mu
	kept    int64            // bytes reserved for all groups and stores
	idle    []relay.Instance // peers without links, longest idle first; guarded by mu
}

// known is a Peer with the number of open link ends that use it: two for each link, its
// Sender and its Receiver, which close independently.
type known struct {
	peer   *Peer
	ends   int
	asking map[netip.AddrPort]int // links that it dialed, by the process of this host that they lead to
}

// mostIdle is how many peers without links are kept. The other side may notice later than
// this one that a link has ended, and still name its requests on the next one; forgetting
// them would break that link.
const mostIdle = 16

// New returns the codec of this proxy.
func New(limits Limits) *Codec {
	return &Codec{limits: limits, stores: shared.NewStores(), peers: make(map[relay.Instance]*known), groups: make(map[scope]*group)}
}

// Name implements [relay.Codec].
func (c *Codec) Name() string { return Name }

// Offer implements [relay.Codec]: the limits, as JSON.
func (c *Codec) Offer() []byte {
	offer, err := json.Marshal(c.limits)
	if err != nil {
		panic(err) // numbers only
	}
	return offer
}

// Open implements [relay.Codec]. Each side takes the lower of both limits, so that both
// arrive at the same.
func (c *Codec) Open(l relay.Link, offered []byte) (relay.Sender, relay.Receiver, error) {
	var theirs Limits
	if err := json.Unmarshal(offered, &theirs); err != nil {
		return nil, nil, fmt.Errorf("compact: the other proxy's limits %q: %w", offered, err)
	}
	// A limit is used to size state and to refuse the other end's messages, so a negative
	// one would fail much later than here.
	limits := lower(c.limits, theirs)
	if limits.negative() {
		return nil, nil, fmt.Errorf("compact: the other proxy's limits %q: a limit below 0", offered)
	}
	other := l.Dialer
	if l.Dialed {
		other = l.Acceptor
	}
	loan := l.Memory.Lend(sourceOf(l))
	p := c.join(other, limits, l.Memory)
	s, r := p.newSender(l.ID, l.Dialed, l.HeadLimit, loan), p.newReceiver(l.ID, l.Dialed, loan)
	s.pays, s.perByte = l.Pays, l.PerByte
	leave, err := c.share(l, other, limits.SharedBytes, s, r)
	if err != nil {
		loan.Close()
		c.leave(other)
		c.leave(other)
		return nil, nil, err
	}
	s.close = sync.OnceFunc(func() { leave(); c.leave(other) })
	r.close = sync.OnceFunc(func() { leave(); c.leave(other) })
	return s, r, nil
}

// sourceOf names whose share a link's memory is of: the job's of the process at this end.
func sourceOf(l relay.Link) string {
	switch {
	case !l.Dialed:
		return l.Destination.String()
	case l.Scope != "":
		return l.Scope
	}
	return l.Client.Addr().String()
}

// join returns the Peer of the other proxy for a new link, which has two ends, each of
// which leaves.
func (c *Codec) join(other relay.Instance, limits Limits, memory *relay.Memory) *Peer {
	c.mu.Lock()
	defer c.mu.Unlock()
	s := c.peers[other]
	if s == nil {
		s = &known{peer: NewPeer(limits), asking: map[netip.AddrPort]int{}}
		s.peer.state = keylist.NewAccount(memory.Lend("peers"))
		c.peers[other] = s
	}
	if s.ends == 0 {
		c.unlist(other)
	}
	s.ends += 2
	return s.peer
}

// unlist removes a peer that is in use again from the idle ones.
func (c *Codec) unlist(other relay.Instance) {
	for i := range c.idle {
		if c.idle[i] == other {
			c.idle = append(c.idle[:i], c.idle[i+1:]...)
			return
		}
	}
}

// leave notes that one end of a link to the other proxy has closed. With the last one the
// peer becomes idle; the peer that has been idle for longest goes when there are too many.
func (c *Codec) leave(other relay.Instance) {
	c.mu.Lock()
	defer c.mu.Unlock()
	s := c.peers[other]
	if s.ends--; s.ends > 0 {
		return
	}
	c.idle = append(c.idle, other)
	if len(c.idle) > mostIdle {
		c.peers[c.idle[0]].peer.close()
		delete(c.peers, c.idle[0])
		c.idle = c.idle[1:]
	}
}

func lower(a, b Limits) Limits {
	return Limits{
		Keys: lowerLists(a.Keys, b.Keys), Lens: lowerLists(a.Lens, b.Lens),
		ValuesBytes:      min(a.ValuesBytes, b.ValuesBytes),
		SparseBytes:      min(a.SparseBytes, b.SparseBytes),
		PlanesBytes:      min(a.PlanesBytes, b.PlanesBytes),
		RetainedRequests: min(a.RetainedRequests, b.RetainedRequests),
		RetainedBytes:    min(a.RetainedBytes, b.RetainedBytes),
		SharedBytes:      min(a.SharedBytes, b.SharedBytes),
		SharedForms:      min(a.SharedForms, b.SharedForms),
	}
}

func lowerLists(a, b keylist.Limits) keylist.Limits {
	return keylist.Limits{
		TableBytes: min(a.TableBytes, b.TableBytes), TableLists: min(a.TableLists, b.TableLists),
		DictionaryKeys: min(a.DictionaryKeys, b.DictionaryKeys), ListBytes: min(a.ListBytes, b.ListBytes),
	}
}

func (l Limits) negative() bool {
	least := min(l.RetainedRequests, l.RetainedBytes, l.ValuesBytes, l.SparseBytes, l.PlanesBytes, l.SharedBytes, l.SharedForms)
	for _, k := range []keylist.Limits{l.Keys, l.Lens} {
		least = min(least, k.TableBytes, k.TableLists, k.DictionaryKeys, k.ListBytes)
	}
	return least < 0
}
