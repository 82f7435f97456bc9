package values

import (
	"sync"

	"github.com/cespare/xxhash/v2"

	"github.com/psidecar/psidecar/internal/wire/pslite"
	"github.com/psidecar/psidecar/proxy/relay"
)

// An answer may come by rows if the worker's proxy asks for that, since it alone knows
// whether the worker's pulls and pushes pair; it asks in the head of the pull. The server's
// proxy then has to recognize the answer of that pull, and the worker's proxy the pull of
// an answer that comes by rows: pull and answer travel on different links. They go by what
// the two have in common, asking. If two workers of a host ask for the same keys under the
// same timestamp at once, both answers come whole.

// asking is what a pull and its answer have in common.
type asking struct {
	peer                     relay.Instance // the proxy at the other end
	app, customer, timestamp int32
	keys                     uint64 // a hash of them
}

func askingOf(peer relay.Instance, m *pslite.Message) asking {
	return asking{peer, m.Meta.AppID, m.Meta.CustomerID, m.Meta.Timestamp, xxhash.Sum64(m.Keys())}
}

// mostAsks bounds the pulls that either end of links remembers. A pull that is forgotten
// before its answer arrives gets it whole.
const mostAsks = 8192

// newest is a map of the newest mostAsks entries. An entry that is put again keeps its age.
// next is the oldest entry of order once that is full. The owner's lock guards it.
type newest[V any] struct {
	all   map[asking]V
	order []asking
	next  int
}

// put enters v, in the place of the oldest entry if there are mostAsks of others.
func (n *newest[V]) put(a asking, v V) {
	if n.all == nil {
		n.all = map[asking]V{}
	}
	if _, ok := n.all[a]; ok {
		n.all[a] = v
		return
	}
	if len(n.order) < mostAsks {
		n.order = append(n.order, a)
	} else {
		delete(n.all, n.order[n.next])
		n.order[n.next] = a
		n.next = (n.next + 1) % mostAsks
	}
	n.all[a] = v
}

// asked is a pull of one of this host's workers that asked for rows.
type asked struct {
	stream *stream
	pull   *pull // nil: it was answered
}

// asks are the pulls of this host's workers that asked for rows. They are shared by all
// links: the pull is put by the Sender of one link and taken by the Receiver of another. mu
// is taken after a stream's lock.
type asks struct {
	mu   sync.Mutex // guards open
	open newest[asked]
}

// put records a pull. It returns false if another worker's pull is in flight that the same
// answer could belong to.
func (x *asks) put(a asking, of asked) bool {
	x.mu.Lock()
	defer x.mu.Unlock()
	if before, ok := x.open.all[a]; ok && before.pull != nil && before.stream != of.stream {
		return false
	}
	x.open.put(a, of)
	return true
}

// takePull returns the pull that an answer belongs to, once: the mask of a repeated answer
// would be for a push that has gone already.
func (x *asks) takePull(a asking) (asked, bool) {
	x.mu.Lock()
	defer x.mu.Unlock()
	of, ok := x.open.all[a]
	if !ok || of.pull == nil {
		return asked{}, false
	}
	x.open.all[a] = asked{}
	return of, true
}

// permit is a pull, at the server's end.
type permit struct {
	link     uint64 // the link over which it came
	granted  bool   // its answer may go by rows
	answered bool   // so that the next pull under this timestamp is a new one
	alike    bool   // another worker's pull was in flight that the answer could belong to
}

// permits are the pulls of other hosts' workers, of keys for which their proxies have a
// rule.
type permits struct {
	mu  sync.Mutex // guards all
	all newest[permit]
}

// note records a pull. Of two that one answer could belong to neither is granted.
func (x *permits) note(a asking, link uint64, asks bool) (alike bool) {
	x.mu.Lock()
	defer x.mu.Unlock()
	before, ok := x.all.all[a]
	alike = ok && (before.alike || before.link != link && !before.answered)
	x.all.put(a, permit{link: link, granted: asks && !alike, alike: alike})
	return alike
}

// grants reports whether an answer may go by rows. A repeated answer is the same as the
// first, and so is what may be done to it.
func (x *permits) grants(a asking) bool {
	x.mu.Lock()
	defer x.mu.Unlock()
	p, ok := x.all.all[a]
	if !ok {
		return false
	}
	p.answered = true
	x.all.all[a] = p
	return p.granted
}
