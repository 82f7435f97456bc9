package spare

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/maphash"
	"slices"
	"time"
)

// frame is a request as it goes over links, or several that were merged.
type frame struct {
	message
	requests []*Request // by ask
	shape    uint64     // see shapeOf; 0: nothing is merged with it
	summed   bool       // the values are the frame's own; else the first request's, which do not change
	bytes    int
	due      time.Time // it does not go before, so that requests of other workers join it; zero: it goes
}

// isPull reports whether a frame pulls alone.
func (f *frame) isPull() bool { return f.pull && !f.push }

// queue has the requests of a client that have no answer. It is not safe for concurrent use.
//
// Invariants: frames are in the order of their numbers, and each has a request by ask. The first sent of them are
// on the link. One that was on a link once does not change any more, but for its keep. The others are in shapes,
// by shape and in order, unless that is 0; those alone may have a due. frameOf has each request that waits, by its
// ask. A worker is in workers while frameOf has an ask of it. newest has the newest timestamp of each worker, for
// MostWorkers at most, and absent those of them that a frame has waited for in vain since their last request.
// messages and bytes are sums over frames.
type queue struct {
	merge    bool
	wait     time.Duration // for other workers' requests; 0: nothing waits
	now      func() time.Time
	absent   map[int32]bool
	frames   []*frame
	sent     int
	number   uint64 // of the last frame
	shapes   map[uint64][]*frame
	frameOf  map[Ask]*frame
	workers  map[int32]*workerLine
	newest   map[int32]int32
	messages int
	bytes    int
	kept     kept // of the link
	keeps    bool // the link's server can leave values out
}

// workerLine is what a queue has of a worker.
type workerLine struct {
	requests int
	last     uint64 // number of the last frame with one of them
}

func newQueue(merge bool, wait time.Duration, memory Reserver) queue {
	return queue{merge: merge, wait: wait, kept: kept{memory: memory, values: map[uint64]*keptValue{}}, now: time.Now, absent: map[int32]bool{}, shapes: map[uint64][]*frame{}, frameOf: map[Ask]*frame{}, workers: map[int32]*workerLine{}, newest: map[int32]int32{}}
}

// checkRequest returns an error if a request cannot be sent.
func checkRequest(r *Request) error {
	if !r.Push && !r.Pull {
		return errors.New("a request neither pushes nor pulls")
	}
	if len(r.Pieces) > mostPieces {
		return fmt.Errorf("a request has %d keys; at most %d are allowed", len(r.Pieces), mostPieces)
	}
	if r.Push {
		if err := checkValues(r.Kind, r.Pieces); err != nil {
			return err
		}
	}
	m := message{push: r.Push, asks: []Ask{r.ask()}, pieces: r.Pieces}
	if n := m.frameSize(); n > mostFrame {
		return fmt.Errorf("a request has %d bytes; at most %d are allowed", n, mostFrame)
	}
	return nil
}

var seed = maphash.MakeSeed()

// shapeOf hashes what requests have in common that are merged: what they do, kind, keys and
// lengths. 0: they are not.
func shapeOf(r *Request) uint64 {
	if r.Push == r.Pull {
		return 0
	}
	var h maphash.Hash
	h.SetSeed(seed)
	kind := byte(0xff)
	if r.Push {
		kind = byte(r.Kind)
	}
	h.WriteByte(kind)
	var b [12]byte
	for i := range r.Pieces {
		binary.LittleEndian.PutUint64(b[:], r.Pieces[i].Key)
		binary.LittleEndian.PutUint32(b[8:], uint32(len(r.Pieces[i].Value)))
		h.Write(b[:])
	}
	return max(h.Sum64(), 1)
}

// isLike reports whether a request has the shape of a frame that was made of another one.
func (f *frame) isLike(r *Request) bool {
	return f.push == r.Push && f.pull == r.Pull && (!f.push || f.kind == r.Kind) &&
		slices.EqualFunc(f.pieces, r.Pieces, func(a, b Piece) bool { return a.Key == b.Key && len(a.Value) == len(b.Value) })
}

// holds reports whether a request waits already.
func (q *queue) holds(a Ask) bool { return q.frameOf[a] != nil }

// addRequest lets a request wait, which has the shape that shapeOf returned. It takes its values.
func (q *queue) addRequest(r *Request, shape uint64) {
	if isNew := q.noteNewest(r.ask()); !q.merge || r.Single || !isNew {
		shape = 0
	}
	w := q.workers[r.Worker]
	if w == nil {
		w = &workerLine{}
		q.workers[r.Worker] = w
	}
	f := q.findLike(r, shape, w)
	if f != nil {
		for i := range f.pieces {
			switch {
			case !f.push:
			case f.summed:
				addValue(f.kind, f.pieces[i].Value, r.Pieces[i].Value)
			default:
				f.pieces[i].Value = bytes.Clone(f.pieces[i].Value)
				addValue(f.kind, f.pieces[i].Value, r.Pieces[i].Value)
			}
		}
		f.summed = true
		f.asks = append(f.asks, r.ask())
	} else {
		q.number++
		f = &frame{shape: shape, message: message{
			push: r.Push, pull: r.Pull, kind: r.Kind, number: q.number, asks: []Ask{r.ask()}, pieces: slices.Clone(r.Pieces),
		}}
		f.bytes = f.frameSize()
		q.frames = append(q.frames, f)
		q.bytes += f.bytes
		if shape != 0 {
			q.shapes[shape] = append(q.shapes[shape], f)
			if q.wait > 0 {
				f.due = q.now().Add(q.wait)
			}
		}
	}
	if len(f.asks) >= len(q.newest)-len(q.absent) {
		f.due = time.Time{}
	}
	for i := range r.Pieces {
		r.Pieces[i].Value = nil // the frame has it
	}
	f.requests = append(f.requests, r)
	q.frameOf[r.ask()] = f
	q.messages++
	w.requests++
	w.last = max(w.last, f.number)
}

// noteNewest reports whether a request is newer than all of its worker before, if it is known.
func (q *queue) noteNewest(a Ask) bool {
	const wrapped = 1 << 27 // back by more than this is forward
	newest, ok := q.newest[a.Worker]
	switch {
	case !ok && len(q.newest) >= MostWorkers:
		return false
	case ok && a.Timestamp <= newest && int64(newest)-int64(a.Timestamp) < wrapped:
		return false
	}
	q.newest[a.Worker] = a.Timestamp
	delete(q.absent, a.Worker)
	return true
}

// findLike returns the first frame of a shape that the request of a worker may join. A push may go before those
// of its worker for other keys, since their order makes no difference; else a frame must be behind all of the worker's.
func (q *queue) findLike(r *Request, shape uint64, w *workerLine) *frame {
	all := q.shapes[shape]
	if shape == 0 || len(all) == 0 {
		return nil
	}
	after := w.last
	if r.Push && len(r.Pieces) > 0 && all[0].number <= after {
		after = q.lastBefore(r, w)
	}
	for _, f := range all {
		if f.number > after && len(f.asks) < MostWorkers && f.frameSize()+8 <= mostFrame && f.isLike(r) {
			return f
		}
	}
	return nil
}

// lastBefore returns the number of the last frame that a push must stay behind: one of its worker that pulls, or that
// has one of its keys. 0: there is none.
func (q *queue) lastBefore(r *Request, w *workerLine) uint64 {
	keys := make(map[uint64]bool, len(r.Pieces))
	for i := range r.Pieces {
		keys[r.Pieces[i].Key] = true
	}
	left := w.requests
	for _, f := range slices.Backward(q.frames) {
		if left == 0 {
			break
		}
		if !slices.ContainsFunc(f.asks, func(a Ask) bool { return a.Worker == r.Worker }) {
			continue
		}
		left-- // a frame has one request of a worker at most
		if f.pull || slices.ContainsFunc(f.pieces, func(p Piece) bool { return keys[p.Key] }) {
			return f.number
		}
	}
	return 0
}

// takeFrames returns the next frames to send: at most so many, of so many bytes, but one at least if
// one may go. From then on they do not change. wait is how long the next one waits, if there is none that may go
// now; 0: there is no other.
func (q *queue) takeFrames(most, bytes int) (frames []*frame, wait time.Duration) {
	from := q.sent
	for q.sent < len(q.frames) && q.sent-from < most {
		f := q.frames[q.sent]
		if bytes -= f.bytes; bytes < 0 && q.sent > from {
			break
		}
		if wait = q.waits(f); wait > 0 {
			break
		}
		q.sent++
		q.leaveShape(f)
		if f.keep = keepNone; q.keeps && len(q.newest) > 1 && f.isPull() {
			f.keep = q.kept.addRequest(f.pieces)
		}
	}
	return slices.Clone(q.frames[from:q.sent]), wait
}

// waits returns how long a frame waits for other workers. Those that did not come are not waited for again before
// their next request.
func (q *queue) waits(f *frame) time.Duration {
	if f.due.IsZero() {
		return 0
	}
	if wait := f.due.Sub(q.now()); wait > 0 {
		return wait
	}
	f.due = time.Time{}
	for worker := range q.newest {
		if !slices.ContainsFunc(f.asks, func(a Ask) bool { return a.Worker == worker }) {
			q.absent[worker] = true
		}
	}
	return 0
}

// leaveShape makes that nothing is merged with a frame any more.
func (q *queue) leaveShape(f *frame) {
	if f.shape == 0 {
		return
	}
	if rest := slices.DeleteFunc(q.shapes[f.shape], func(o *frame) bool { return o == f }); len(rest) > 0 {
		q.shapes[f.shape] = rest
	} else {
		delete(q.shapes, f.shape)
	}
}

// takeAnswered removes the first frame, to which there is an answer with this number and so many
// values; ok is false if it cannot be the answer. Of a pull's values, those that were left out are put in;
// spared is their size.
func (q *queue) takeAnswered(r *reply) (requests []*Request, spared int, ok bool) {
	if q.sent == 0 || q.frames[0].number != r.number {
		return nil, 0, false
	}
	f := q.frames[0]
	if r.code == codeDone && (r.pull != f.pull || f.pull && len(r.values) != len(f.pieces)) {
		return nil, 0, false
	}
	if spared, ok = q.kept.takeAnswer(f.keep, f.pieces, r.values, r.bytes); !ok {
		return nil, 0, false
	}
	q.frames[0] = nil
	q.frames = q.frames[1:]
	q.sent--
	q.bytes -= f.bytes
	for _, r := range f.requests {
		q.leaveWorker(r)
	}
	return f.requests, spared, true
}

// leaveWorker notes that a request does not wait any more.
func (q *queue) leaveWorker(r *Request) {
	delete(q.frameOf, r.ask())
	q.messages--
	w := q.workers[r.Worker]
	if w.requests--; w.requests == 0 {
		delete(q.workers, r.Worker)
	}
}

// sendAgain makes all frames wait for the next link, also those that were sent: the server may have applied them, or
// not. keeps is whether the next link's server can leave values out.
func (q *queue) sendAgain(keeps bool) {
	q.sent, q.keeps = 0, keeps
	q.kept.forgetAll()
}
