package compact

import (
	"bytes"
	"fmt"
	"sync"

	"github.com/psidecar/psidecar/internal/wire/pslite"
	"github.com/psidecar/psidecar/proxy/codec/keylist"
)

// A Peer is what this proxy and one instance of another know of each other's requests in
// flight. The asking side keeps the keys of a request until the answer that names it has
// arrived, its values included, which may need them; the answering side names a request at
// most once, and only if the answer has the very same keys. So neither a lost answer nor a
// repeated one, nor two workers with equal timestamps, can make an answer wrong.
//
// The asking side alone decides whether there is room to keep a request; the answering side
// counts along with the same limits and refuses more. Requests without an answer stay until
// the last link to the peer ends: the other side may still be about to name them.
//
// A Peer is safe for concurrent use. It must not outlive the other proxy's process: a new
// instance gets a new Peer.
type Peer struct {
	limits Limits

	mu    sync.Mutex           // guards what follows
	state keylist.Account      // of the keys
	asked map[request][]byte   // by us: keys, until the answer
	due   map[exchange][]*asks // by the peer: those that we may name in an answer
	byReq map[request]*asks    // the same requests, to forget those of a link that ended
	kept  quota                // of asked; its memory is counted by state
	owed  quota                // of due, likewise
}

// request names a request that was retained: the number of its link, as the dialing side
// gave it, and its number among those retained on that link. The numbers are counted at
// both ends, never sent.
type request struct{ link, number uint64 }

// exchange is what a request and its answer have in common on the wire. It is not unique:
// two workers of a host may use the same timestamp, which is why keys are compared as well.
type exchange struct{ app, customer, timestamp int32 }

func exchangeOf(m *pslite.Meta) exchange {
	return exchange{m.AppID, m.CustomerID, m.Timestamp}
}

// asks is a request of the peer.
type asks struct {
	request  request
	exchange exchange
	keys     []byte
}

// quota counts requests and their bytes.
type quota struct{ requests, bytes int }

func (q *quota) fits(l Limits, size int) bool {
	return q.requests < l.RetainedRequests && q.bytes+size <= l.RetainedBytes
}

func (q *quota) add(size int)    { q.requests++; q.bytes += size }
func (q *quota) remove(size int) { q.requests--; q.bytes -= size }

// NewPeer returns a Peer without requests.
func NewPeer(limits Limits) *Peer {
	return &Peer{
		limits: limits,
		asked:  make(map[request][]byte),
		due:    make(map[exchange][]*asks),
		byReq:  make(map[request]*asks),
	}
}

// keepRequest retains a copy of the keys of our request, and reports whether there was
// room.
func (p *Peer) keepRequest(r request, keys []byte) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.kept.fits(p.limits, len(keys)) || !p.state.TryGrow(len(keys)) {
		return false
	}
	p.kept.add(len(keys))
	p.asked[r] = bytes.Clone(keys)
	return true
}

// takeKeys returns the keys of our request that the peer has named, and forgets it. An
// answer that names a request twice, or one that was not kept, is corrupt.
func (p *Peer) takeKeys(r request) ([]byte, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	keys, ok := p.asked[r]
	if !ok {
		return nil, fmt.Errorf("%w: an answer to request %d of link %d, which is not kept", ErrCorrupt, r.number, r.link)
	}
	delete(p.asked, r)
	p.kept.remove(len(keys))
	p.state.Shrink(len(keys))
	return keys, nil
}

// keysOf returns the keys of our request if it is still kept, or else nil. They do not change.
func (p *Peer) keysOf(r request) []byte {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.asked[r]
}

// waits reports whether our request is still kept.
func (p *Peer) waits(r request) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	_, ok := p.asked[r]
	return ok
}

// expect notes a request of the peer's whose keys the peer has retained.
func (p *Peer) expect(r request, e exchange, keys []byte) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.owed.fits(p.limits, len(keys)) {
		return fmt.Errorf("%w: more requests are kept than was agreed", ErrCorrupt)
	}
	if p.byReq[r] != nil {
		return fmt.Errorf("%w: request %d of link %d is kept twice", ErrCorrupt, r.number, r.link)
	}
	if !p.state.TryGrow(len(keys)) {
		return nil // its answer brings the keys itself; the peer keeps them in vain
	}
	p.owed.add(len(keys))
	a := &asks{r, e, bytes.Clone(keys)}
	p.due[e] = append(p.due[e], a)
	p.byReq[r] = a
	return nil
}

// name returns the peer's request that an answer with these keys belongs to, and forgets
// it.
func (p *Peer) name(e exchange, keys []byte) (request, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, a := range p.due[e] {
		if bytes.Equal(a.keys, keys) {
			p.forget(a)
			return a.request, true
		}
	}
	return request{}, false
}

// owes reports whether the peer retains the keys of a request for the answer of that
// exchange.
func (p *Peer) owes(e exchange) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.due[e]) > 0
}

// forgetLink forgets the peer's requests of a link that has ended, of which there were
// numbers in all. Most are answered by then: it walks over whichever is less, the requests
// due or the link's numbers.
func (p *Peer) forgetLink(link, numbers uint64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if uint64(len(p.byReq)) < numbers {
		for r, a := range p.byReq {
			if r.link == link {
				p.forget(a)
			}
		}
		return
	}
	for n := range numbers {
		if a := p.byReq[request{link, n}]; a != nil {
			p.forget(a)
		}
	}
}

// forget removes a request of the peer's from both maps. The caller holds p.mu.
func (p *Peer) forget(a *asks) {
	delete(p.byReq, a.request)
	p.owed.remove(len(a.keys))
	p.state.Shrink(len(a.keys))
	same := p.due[a.exchange]
	for i := range same {
		if same[i] == a {
			same[i] = same[len(same)-1]
			same = same[:len(same)-1]
			break
		}
	}
	if len(same) == 0 {
		delete(p.due, a.exchange)
		return
	}
	p.due[a.exchange] = same
}

// close releases the memory of requests that will not be answered any more.
func (p *Peer) close() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for r, keys := range p.asked {
		p.kept.remove(len(keys))
		delete(p.asked, r)
	}
	for _, a := range p.byReq {
		p.forget(a)
	}
	p.state.Close()
}
