package compact

import (
	"encoding/json"
	"fmt"
	"sync"

	"github.com/psidecar/psidecar/proxy/codec/keylist"
	"github.com/psidecar/psidecar/proxy/relay"
)

// Codec makes the Senders and Receivers of this proxy's links. It is safe for
// use by several goroutines.
type Codec struct {
	limits Limits

	mu    sync.Mutex
	peers map[relay.Instance]*shared
	idle  []relay.Instance // without links, the one longest so first
}

// shared is a Peer with the number of its ends of links that are open.
type shared struct {
	peer *Peer
	ends int
}

// mostIdle is how many peers without links are kept: the other side may learn
// later than we do that a link has ended, and still name its requests on the
// next one.
const mostIdle = 16

// New returns the codec of this proxy.
func New(limits Limits) *Codec {
	return &Codec{limits: limits, peers: make(map[relay.Instance]*shared)}
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

// Open implements [relay.Codec]. Both ends use the lower of their limits.
func (c *Codec) Open(l relay.Link, offered []byte) (relay.Sender, relay.Receiver, error) {
	var theirs Limits
	if err := json.Unmarshal(offered, &theirs); err != nil {
		return nil, nil, fmt.Errorf("compact: the other proxy's limits %q: %w", offered, err)
	}
	limits := lower(c.limits, theirs)
	if limits.negative() {
		return nil, nil, fmt.Errorf("compact: the other proxy's limits %q: a limit below 0", offered)
	}
	other := l.Dialer
	if l.Dialed {
		other = l.Acceptor
	}
	p := c.join(other, limits, l.Memory)
	s, r := p.newSender(l.ID, l.Dialed, l.HeadLimit, l.Memory), p.newReceiver(l.ID, l.Dialed, l.Memory)
	s.pays = l.Pays
	s.close = sync.OnceFunc(func() { c.leave(other) })
	r.close = sync.OnceFunc(func() { c.leave(other) })
	return s, r, nil
}

// join returns the Peer of the other proxy for a new link, which has two ends.
func (c *Codec) join(other relay.Instance, limits Limits, memory *relay.Memory) *Peer {
	c.mu.Lock()
	defer c.mu.Unlock()
	s := c.peers[other]
	if s == nil {
		s = &shared{peer: NewPeer(limits)}
		s.peer.state = keylist.NewAccount(keyMemory(memory))
		c.peers[other] = s
	}
	if s.ends == 0 {
		c.unlist(other)
	}
	s.ends += 2
	return s.peer
}

func (c *Codec) unlist(other relay.Instance) {
	for i := range c.idle {
		if c.idle[i] == other {
			c.idle = append(c.idle[:i], c.idle[i+1:]...)
			return
		}
	}
}

// leave notes that one end of a link to the other proxy has closed.
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
		RetainedRequests: min(a.RetainedRequests, b.RetainedRequests),
		RetainedBytes:    min(a.RetainedBytes, b.RetainedBytes),
	}
}

func lowerLists(a, b keylist.Limits) keylist.Limits {
	return keylist.Limits{
		TableBytes: min(a.TableBytes, b.TableBytes), TableLists: min(a.TableLists, b.TableLists),
		DictionaryKeys: min(a.DictionaryKeys, b.DictionaryKeys), ListBytes: min(a.ListBytes, b.ListBytes),
	}
}

func (l Limits) negative() bool {
	least := min(l.RetainedRequests, l.RetainedBytes, l.ValuesBytes, l.SparseBytes)
	for _, k := range []keylist.Limits{l.Keys, l.Lens} {
		least = min(least, k.TableBytes, k.TableLists, k.DictionaryKeys, k.ListBytes)
	}
	return least < 0
}
