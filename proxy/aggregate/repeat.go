package aggregate

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/cespare/xxhash/v2"

	"github.com/psidecar/psidecar/proxy/pslite"
	"github.com/psidecar/psidecar/proxy/relay"
)

// This file is about jobs with PS_RESEND. What was sent for a push is sent again when its worker
// repeats it: the sum for a carrier, zeros for what it has carried. What waits here is not taken
// twice. Which pushes are known to be new is a matter of their timestamps, and all of it outlives a
// kill of the proxy in files.

// hashOf returns a hash of a push's values and lists. It distinguishes a repetition from another
// process's push with the same timestamp.
func hashOf(m *pslite.Message) uint64 {
	var h xxhash.Digest
	h.Reset()
	var size [8]byte
	for _, f := range m.Data {
		binary.LittleEndian.PutUint64(size[:], uint64(len(f)))
		h.Write(size[:])
		h.Write(f)
	}
	return h.Sum64()
}

// repeated reports whether a push is the repetition of one that was taken, and what to do with it:
// one that still waits is dropped, of the others what went for them goes again.
func (q *Queue) repeated(m *pslite.Message, shown *relay.Message) (t relay.Taken, is bool) {
	g, e := q.group, exchangeOf(&m.Meta)
	it := q.pair.taken[e]
	if it == nil && q.pair.isInherited(&m.Meta) {
		g.load() // the proxy before this one may have ended since
		it = q.pair.taken[e]
	}
	switch {
	case it == nil:
		return relay.Passes, false
	case q.failed != nil:
		return relay.Waits, true
	// The rest of it does not fit into the memory: it comes again over another connection.
	case shown.Rest:
		q.fail(errUnheld)
		return relay.Waits, true
	case it.hash != hashOf(m):
		g.restartPair(q.pair)
		q.pair.blind = true // of that process some may have passed unseen
		return relay.Passes, false
	// It is still to go, or cannot yet, and will come again. Queued now it could hold up the
	// repetition of what it waits for.
	case it.queued || !it.batch.goesAgain(it):
		g.counts.Repeated++
		return relay.Took, true
	case len(q.items) >= maxItems:
		return relay.Waits, true
	}
	if b := it.batch; b.state == isDissolved {
		if !q.revive(it, m) { // it comes again
			g.counts.Repeated++
			return relay.Took, true
		}
	} else if b.keys == nil { // released when all was written, or another proxy had them
		s := subjectOf(m, len(m.Values().Bytes)).clone()
		b.keys, b.lens, b.size, b.kind = s.keys, s.lens, s.size, s.kind
	}
	if it.meta == nil {
		it.meta = bytes.Clone(shown.Frames[len(shown.Frames)-len(m.Data)-1])
	}
	it.queue, it.queued, it.sig = q, true, pslite.Signature(&m.Meta, q.worker, g.server)
	it.batch.waiting++
	at := 0
	if !it.gone {
		at = len(q.items)
	}
	q.items = slices.Insert(q.items, at, it)
	g.counts.Repeated++
	g.next(g.opts.now())
	g.stir()
	q.poke()
	return relay.Took, true
}

// isTaken reports whether a message may repeat a push that was taken.
func (q *Queue) isTaken(m *pslite.Message) bool {
	if q.group == nil || !m.Meta.Data() || !m.Meta.Request || !m.Meta.Push || m.Meta.Pull {
		return false
	}
	q.group.mu.Lock()
	defer q.group.mu.Unlock()
	return q.pair.taken[exchangeOf(&m.Meta)] != nil || q.pair.isInherited(&m.Meta)
}

// goesAgain reports whether a repeated push can go now, or could be chosen to.
func (b *batch) goesAgain(it *item) bool {
	switch b.state {
	case isOpen, isChosen, isDissolved:
		return b.after == 0
	case isOver:
		return true
	}
	return it == b.carrier
}

// errUnheld ends a connection whose worker repeats a push for which there is no memory now.
var errUnheld = errors.New("aggregate: no memory to hold a repeated push, part of which is in a sum")

// revive opens a batch with the values that a push still has, after its first batch has ended
// without going. It returns false where there is no memory for it.
func (q *Queue) revive(it *item, m *pslite.Message) bool {
	g, old, values := q.group, it.batch, m.Values().Bytes
	s := subjectOf(m, len(values))
	if !g.reserve(len(values) + s.listBytes()) {
		return false
	}
	// Nobody knows here which of its keys are new to the server: it neither gives nor carries.
	s.stay = slices.Repeat([]bool{true}, len(s.keys)/8)
	b := q.open(&s, values, g.opts.now())
	b.repeats, b.gave = true, append([]bool(nil), old.gave...)
	if b.row > 0 && len(b.gave) == len(b.keys)/8 {
		for r := (rows{s: &b.subject}); r.more(); r.next() {
			if b.gave[r.i] {
				clear(b.sum[r.at : r.at+r.length()])
				b.given += r.length()
			}
		}
	}
	b.items = append(b.items, it)
	it.batch, it.meta = b, nil
	return true
}

// dissolve ends a batch that none of its pushes can carry: all their connections have ended, and
// nothing of it has gone. They come again. Of those that have given values away it stays known for
// which keys.
func (g *group) dissolve(b *batch) {
	g.removeOpen(b)
	b.state = isDissolved
	if b.given == 0 {
		for _, it := range b.items {
			g.settle(it)
		}
	}
}

// settle forgets a push: it is answered, or was never in a sum. The files that have it go with the
// last of theirs.
func (g *group) settle(it *item) {
	delete(it.pair.taken, it.exchange)
	for _, r := range it.records {
		if err := r.release(); err != nil {
			g.opts.Log.Warn("the next proxy will not know that a push in a sum was answered", "server", g.server, "error", err)
		}
	}
	it.records = nil
}

// keep writes the record of a batch whose carrier is about to go. The caller does not hold mu:
// nobody changes the batch now.
func (g *group) keep(b *batch, h *header) {
	err := writeRecord(b.record.path, h, b.sum)
	if err == nil {
		return
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	g.off, b.unkept = Unkept, b.sum
	g.opts.Log.Warn("pushes to a server are not summed any more; if this proxy is killed before the server has answered, some may be applied twice", "server", g.server, "error", err)
}

// describe makes the record of a batch, and returns what it says. The caller holds mu.
func (g *group) describe(b *batch) *header {
	b.record = &record{path: filepath.Join(g.dir, g.opts.name+"-"+strconv.FormatUint(b.number, 10)+recordExt)}
	h := &header{Carrier: keptOf(b.carrier)}
	refer := func(it *item) {
		it.records = append(it.records, reference{b.record, b.record.refs})
		b.record.refs++
	}
	refer(b.carrier)
	for _, it := range b.items {
		if it != b.carrier {
			h.Carried = append(h.Carried, keptOf(it))
			refer(it)
		}
	}
	for _, o := range b.givers {
		runs := runsOf(o.gave)
		for _, it := range o.items {
			h.Given = append(h.Given, keptGift{keptOf(it), runs})
			refer(it)
		}
	}
	return h
}

func keptOf(it *item) keptPush {
	return keptPush{it.pair.worker, it.app, it.customer, it.timestamp, it.hash}
}

// sumAgain returns a sum that has gone, for its repeated carrier.
func (b *batch) sumAgain() ([]byte, error) {
	if b.unkept != nil {
		return b.unkept, nil
	}
	_, sum, _, err := readRecord(b.record.path)
	if err == nil && len(sum) != b.size {
		err = fmt.Errorf("%s: %w: a sum of %d bytes, and its carrier has %d", b.record.path, errRecord, len(sum), b.size)
	}
	return sum, err
}

// load reads the records that other proxies have left of the server, as far as they are not known.
func (g *group) load() {
	if g.dir == "" {
		return
	}
	files, err := os.ReadDir(g.dir)
	if err != nil {
		if !errors.Is(err, fs.ErrNotExist) {
			g.opts.Log.Warn("repeated pushes of which the proxy before this one knew may be applied twice", "server", g.server, "error", err)
		}
		return
	}
	for _, f := range files {
		name := f.Name()
		if g.loaded[name] || !strings.HasSuffix(name, recordExt) || strings.HasPrefix(name, g.opts.name+"-") {
			continue
		}
		g.loaded[name] = true
		path := filepath.Join(g.dir, name)
		h, sum, answered, err := readRecord(path)
		switch {
		case errors.Is(err, fs.ErrNotExist):
		// A kill came while it was written: nothing of the sum has gone.
		case errors.Is(err, errRecord):
			g.opts.Log.Info("a sum did not go", "server", g.server, "error", err)
			os.Remove(path)
		case err != nil:
			g.opts.Log.Warn("repeated pushes of a sum that the proxy before this one sent may be applied twice", "server", g.server, "error", err)
		default:
			g.restore(&record{path: path}, h, len(sum), answered)
		}
	}
}

// restore makes the batch of a record, and the pushes that it has to do with, as far as they are not
// answered.
func (g *group) restore(r *record, h *header, size int, answered []byte) {
	b := &batch{subject: subject{size: size}, state: isSent, repeats: true, record: r, isRestored: true}
	if r.refs = bytes.Count(answered, []byte{0}); r.refs == 0 {
		os.Remove(r.path)
		return
	}
	add := func(at int, k keptPush, of *batch) *item {
		p := g.pairOf(k.Worker)
		e := exchange{k.App, k.Customer, k.Timestamp}
		it := p.taken[e]
		if it == nil {
			it = &item{queue: &Queue{group: g, pair: p, ended: true}, pair: p, exchange: e, hash: k.Sum}
			p.take(it)
		}
		it.records = append(it.records, reference{r, at})
		// What has gone says more than what was to be left of it.
		if it.batch == nil || it.batch.state == isDissolved && of.state != isDissolved {
			it.batch, it.gone = of, of.state != isDissolved
			of.items = append(of.items, it)
		}
		return it
	}
	over := answered[0] != 0
	if !over {
		b.carrier = add(0, h.Carrier, b)
	}
	for i, k := range h.Carried {
		if at := 1 + i; answered[at] == 0 {
			add(at, k, b)
		}
	}
	for i, k := range h.Given {
		at := 1 + len(h.Carried) + i
		if answered[at] != 0 {
			continue
		}
		gave := ofRuns(k.Runs)
		o := &batch{state: isDissolved, repeats: true, gave: gave}
		it := add(at, k.Push, o)
		if it.batch != o {
			o = it.batch
			for i := range min(len(gave), len(o.gave)) {
				o.gave[i] = o.gave[i] || gave[i]
			}
		}
		if !over && o.state == isDissolved {
			o.after++
			b.givers = append(b.givers, o)
		}
	}
	if over {
		b.state = isOver
		return
	}
	b.deadline = g.opts.now().Add(goneAfter)
	g.sent = append(g.sent, b)
	g.stir()
}

// take notes that a push was taken.
func (p *pair) take(it *item) {
	if p.taken == nil {
		p.taken = map[exchange]*item{}
	}
	p.taken[it.exchange] = it
}

// acknowledged notes the server's ACK of a push of a worker, which may be a carrier: from now on it is
// only the answer that is waited for.
func (g *group) acknowledged(p *pair, sig uint64) {
	p.resends = true
	for _, b := range g.sent {
		if it := b.carrier; it.pair == p && it.sig == sig && b.repeats && !b.isAcked {
			now := g.opts.now()
			g.unhold(b)
			b.isAcked, b.left, b.breaks, b.deadline = true, now, p.breaks, now.Add(g.opts.AnswerWithin)
		}
	}
}

// unhold releases the lists of a carrier, which need not go again by itself.
func (g *group) unhold(b *batch) {
	if b.holds {
		b.holds = false
		g.leave(b)
	}
}

// againAfter is when a carrier that is not acknowledged goes again by itself, since all of it has
// left. PS-lite's workers wait as long, as a rule.
const againAfter = time.Second

// goneAfter is how long the others' pushes wait for a carrier that is not acknowledged, since all of it
// has left or its connection has ended: its worker repeats it. PS-lite's workers give up after 55 s, as
// a rule.
const goneAfter = 30 * time.Second

// judgeRepeated is judge for a job with PS_RESEND. Nothing is lost while the carrier's worker is
// there: it repeats the carrier, and the server its answer.
func (g *group) judgeRepeated(b *batch, now time.Time) {
	it, q := b.carrier, b.carrier.queue
	switch {
	case b.isRestored && b.record.isOver():
		g.settle(it)
		g.finish(b)
		return
	case q.ended && !b.isCut:
		b.isCut, b.deadline = true, now.Add(goneAfter)
	case q.ended:
	case b.isAcked:
	case b.left.IsZero():
		b.deadline = now.Add(goneAfter)
		if !it.queued && !q.writing && q.link.Unacked() == 0 {
			b.left, b.lately = now, now
		}
	// The worker's repetition may be behind what waits for it here.
	case b.holds && !it.queued && now.Sub(b.lately) >= againAfter:
		it.queued = true
		b.waiting++
		q.items = slices.Insert(q.items, 0, it)
		q.poke()
	}
	switch {
	case now.Before(b.deadline):
	case q.ended:
		for _, o := range b.items {
			if !b.isAcked && o != it && !o.gone && o.pair.taken[o.exchange] == o {
				g.counts.Lost++
			}
		}
		g.finish(b)
	case b.breaks == q.pair.breaks && q.pair.hears > 0:
		g.off = Sums // it waits for the others' pushes, which are here
		g.finish(b)
	default: // the server's answer was on a connection that has ended, and comes again
		b.breaks, b.deadline = q.pair.breaks, now.Add(g.opts.AnswerWithin)
	}
}

// finish lets the pushes go that a sent batch has carried.
func (g *group) finish(b *batch) {
	g.sent = slices.DeleteFunc(g.sent, func(o *batch) bool { return o == b })
	g.over(b)
}
