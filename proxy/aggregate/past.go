package aggregate

import (
	"errors"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"strconv"

	"github.com/psidecar/psidecar/proxy/jobs"
	"github.com/psidecar/psidecar/proxy/pslite"
	"github.com/psidecar/psidecar/proxy/route"
)

// past is what is known of the pushes of a pair. The mutex of the server's group guards it.
type past struct {
	// taken are the pushes that were taken and are not answered, unless their values have left in no
	// push but their own. At most maxItems.
	taken map[exchange]*item
	// last has the highest timestamp of pushes seen: one that is higher is no repetition. PS-lite
	// numbers the requests of each customer in ascending order.
	last map[line]int32
	// bound is at least last, and in the file: the next proxy takes it for last.
	bound map[line]int32
	// inherited is bound, as the proxy before this one has left it.
	inherited map[line]int32
	begun     bool // a connection was there
	isFresh   bool // the worker's process has started since this proxy has
	blind     bool // pushes may have passed unseen, so that nobody knows which are repetitions
}

// line is what numbers requests in ascending order: a customer, or for it the router of this host,
// which numbers the parts of split requests.
type line struct {
	app, customer int32
	own           bool // the router
}

// block is by how much bound is raised, as a rule. The next proxy sums nothing up to it.
const block = 128

func lineOf(m *pslite.Meta) line {
	return line{m.AppID, m.CustomerID, m.Timestamp >= route.FirstOwn}
}

// keptPast is a past's bound in its file.
type keptPast struct {
	App      int32 `json:"app"`
	Customer int32 `json:"customer"`
	Own      bool  `json:"own,omitempty"`
	Bound    int32 `json:"bound"`
}

// isNew reports whether a push is no repetition of one that was seen, here or by a proxy before.
func (p *past) isNew(m *pslite.Meta) bool {
	last, seen := p.last[lineOf(m)]
	return !seen || m.Timestamp > last
}

// isInherited reports whether a push may have been seen by the proxy before this one.
func (p *past) isInherited(m *pslite.Meta) bool {
	bound, known := p.inherited[lineOf(m)]
	return known && m.Timestamp <= bound
}

// note notes that a push has been seen. It returns false where that is too much to remember.
func (p *past) note(m *pslite.Meta) bool {
	if p.last == nil {
		p.last = map[line]int32{}
	}
	if _, known := p.last[lineOf(m)]; !known && len(p.last) >= maxPastLines {
		return false
	}
	if p.isNew(m) {
		p.last[lineOf(m)] = m.Timestamp
	}
	return true
}

// maxPastLines bounds the customers of a worker that are remembered. PS-lite's programs have one or
// two.
const maxPastLines = 256

// promise raises the bound in the file above last before a push goes, where that is necessary. If
// that fails nothing is summed any more, since the next proxy would take repetitions for new pushes.
func (p *pair) promise(g *group) {
	raised := false
	for l, last := range p.last {
		if bound, known := p.bound[l]; !known || last > bound {
			if p.bound == nil {
				p.bound = map[line]int32{}
			}
			p.bound[l], raised = last+min(g.opts.block, math.MaxInt32-last), true
		}
	}
	if !raised || p.blind {
		return
	}
	var all []keptPast
	for l, bound := range p.bound {
		all = append(all, keptPast{l.app, l.customer, l.own, bound})
	}
	if _, err := jobs.WriteKept(g.pastFile(p), all); err != nil {
		g.opts.Log.Warn("a worker's pushes are not summed any more, since the next proxy could not tell which are repeated", "worker", p.worker, "server", g.server, "error", err)
		g.blindPair(p)
	}
}

// blindPair has nothing of a worker summed any more, by this proxy and the next.
func (g *group) blindPair(p *pair) {
	p.blind = true
	if g.dir != "" {
		os.Remove(g.pastFile(p)) // it does not hold any more
	}
}

// beginPair takes up what the proxy before this one knew, when the worker's first connection comes.
func (g *group) beginPair(p *pair) {
	if p.begun {
		return
	}
	p.begun = true
	if g.dir == "" {
		p.blind = true
		return
	}
	var all []keptPast
	switch err := jobs.ReadKept(g.pastFile(p), &all); {
	case err != nil && !p.isFresh:
		p.blind = true
		if !errors.Is(err, fs.ErrNotExist) {
			g.opts.Log.Warn("a worker's pushes are not summed until its job starts again", "worker", p.worker, "server", g.server, "error", err)
		}
	case err == nil:
		p.last, p.bound, p.inherited = map[line]int32{}, map[line]int32{}, map[line]int32{}
		for _, k := range all {
			l := line{k.App, k.Customer, k.Own}
			p.last[l], p.bound[l], p.inherited[l] = k.Bound, k.Bound, k.Bound
		}
	}
}

// restartPair forgets a worker's pushes: another process has taken its place, of which all are seen.
func (g *group) restartPair(p *pair) {
	for _, it := range p.taken {
		g.settle(it)
	}
	p.past = past{isFresh: true, begun: true, blind: g.dir == ""}
	if g.dir != "" {
		os.Remove(g.pastFile(p))
	}
}

func (g *group) pastFile(p *pair) string {
	return filepath.Join(g.dir, "worker-"+strconv.Itoa(int(p.worker))+".json")
}
