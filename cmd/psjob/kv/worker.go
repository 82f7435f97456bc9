package kv

import (
	"bytes"
	"context"
	"fmt"
	"slices"
	"sync"

	"github.com/psidecar/psidecar/cmd/psjob/van"
	"github.com/psidecar/psidecar/internal/wire/pslite"
)

// A Worker pushes and pulls. Its methods may be called from many goroutines. Answers
// are handled in one goroutine, the customer's, which copies pulled values to where
// the caller wants them.
type Worker struct {
	app
	inFlight sync.Map // timestamp -> *transfer, from before it is sent until all servers have answered

	logMu sync.Mutex // guards log
	log   *AccessLog // nil: not kept
}

// A Request is keys, ascending and each once, with equally many values each, or
// Lens[i] values for Keys[i] if Lens is not nil. The slices must stay as they are
// until the request was answered: they are sent from where they are, and sent again
// with PS_RESEND.
type Request struct {
	Keys     []uint64
	Lens     []int32
	Vals     []float32 // to push
	Out      []float32 // buffer for pulled values; its length is their number
	Head     int32     // for the server's handler
	Priority int32
	Doubles  bool // Vals and Out are the halves of doubles, an even number for each key
}

// transfer is a request in flight, cut by servers.
type transfer struct {
	Request
	push, pull bool
	keyAt      []int // by server: where its part of Keys begins; one more for the end
	valAt      []int // likewise in Vals and Out
}

// NewWorker starts a worker on a van. If log is not nil every request is counted in
// it, when it has been answered.
func NewWorker(v *van.Van, appID, customerID int, log *AccessLog) (*Worker, error) {
	w := &Worker{app: app{van: v, id: appID, custID: customerID, answers: make(map[int32][]Command)}, log: log}
	var err error
	w.customer, err = v.NewCustomer(appID, customerID, w.handle)
	return w, err
}

// Push sends r.Vals to the keys' servers and returns the request's timestamp, for
// Wait. It blocks while too many messages wait for a server.
func (w *Worker) Push(ctx context.Context, r Request) (int32, error) {
	return w.send(ctx, &transfer{Request: r, push: true})
}

// Pull asks for the keys' values, which are in r.Out after Wait.
func (w *Worker) Pull(ctx context.Context, r Request) (int32, error) {
	return w.send(ctx, &transfer{Request: r, pull: true})
}

// PushPull pushes r.Vals and pulls the values that result into r.Out, in one request.
func (w *Worker) PushPull(ctx context.Context, r Request) (int32, error) {
	return w.send(ctx, &transfer{Request: r, push: true, pull: true})
}

// send cuts a request by servers and sends each its part. Servers that have none of
// its keys get no message.
func (w *Worker) send(ctx context.Context, t *transfer) (int32, error) {
	if err := t.slice(w.van.Config().Servers); err != nil {
		return 0, err
	}
	var nodes []int
	for s := range len(t.keyAt) - 1 {
		if t.keyAt[s] < t.keyAt[s+1] {
			nodes = append(nodes, int(pslite.ServerID(s)))
		}
	}
	var ts int32
	ts, err := w.customer.NewRequest(nodes, func() error { return w.finish(ts, t) })
	if err != nil {
		return 0, err
	}
	// Before the first part is sent: its answer may come before the last part is.
	w.inFlight.Store(ts, t)
	// A request without keys is answered at once, by nobody.
	if len(nodes) == 0 {
		return ts, w.customer.Complete(ts)
	}
	for _, node := range nodes {
		_, s, _ := pslite.Rank(int32(node))
		m := van.NewMessage(node)
		w.address(m, ts, int32(w.custID), true)
		m.Meta.Push, m.Meta.Pull, m.Meta.Head, m.Meta.Priority = t.push, t.pull, t.Head, t.Priority
		p := parts{keys: t.Keys[t.keyAt[s]:t.keyAt[s+1]], doubles: t.Doubles}
		if t.push {
			p.vals = t.Vals[t.valAt[s]:t.valAt[s+1]]
		}
		if t.Lens != nil {
			p.lens = t.Lens[t.keyAt[s]:t.keyAt[s+1]]
		}
		p.close(m)
		if err := w.van.Send(ctx, m); err != nil {
			return 0, err
		}
	}
	return ts, nil
}

// slice cuts the keys by the servers' ranges. It is linear in the servers and
// logarithmic in the keys.
func (t *transfer) slice(servers int) error {
	values := len(t.Out)
	if t.push {
		values = len(t.Vals)
	}
	if t.push && t.pull && len(t.Vals) != len(t.Out) {
		return fmt.Errorf("%d values to push, room for %d to pull", len(t.Vals), len(t.Out))
	}
	if t.Lens != nil && len(t.Lens) != len(t.Keys) {
		return fmt.Errorf("%d lengths for %d keys", len(t.Lens), len(t.Keys))
	}
	if t.Lens == nil && len(t.Keys) > 0 && (values%len(t.Keys) != 0 || values == 0) {
		return fmt.Errorf("%d values do not divide by %d keys", values, len(t.Keys))
	}
	t.keyAt, t.valAt = make([]int, servers+1), make([]int, servers+1)
	at := 0
	for s := range servers {
		_, end := pslite.KeyRange(s, servers)
		// Ranges are half-open: a key that equals the end belongs to the next server.
		n, _ := slices.BinarySearch(t.Keys[at:], end)
		if s == servers-1 && at+n < len(t.Keys) {
			return fmt.Errorf("key %d belongs to no server: the last one's range ends at %d", t.Keys[at+n], end)
		}
		t.keyAt[s+1] = at + n
		t.valAt[s+1] = t.valAt[s]
		switch {
		case t.Lens != nil:
			for _, l := range t.Lens[at : at+n] {
				t.valAt[s+1] += int(l)
			}
		case len(t.Keys) > 0:
			t.valAt[s+1] += n * (values / len(t.Keys))
		}
		at += n
	}
	// Of lengths only their sum was unknown so far.
	if t.valAt[servers] != values {
		return fmt.Errorf("lengths sum to %d, but got %d values", t.valAt[servers], values)
	}
	return nil
}

// handle takes one server's answer. The customer counts it after that.
func (w *Worker) handle(ctx context.Context, m *van.Message) error {
	if m.Meta.SimpleApp {
		return w.handleCommand(ctx, m, nil)
	}
	if m.Meta.Request {
		return fmt.Errorf("node %d sends a data request to a worker", m.Sender)
	}
	if !m.Meta.Pull {
		return nil // counted by the customer
	}
	// It stays until the last server has answered, which is counted after this.
	found, ok := w.inFlight.Load(m.Meta.Timestamp)
	if !ok {
		return fmt.Errorf("unexpected answer from node %d to pull %d", m.Sender, m.Meta.Timestamp)
	}
	if err := found.(*transfer).copyPart(m); err != nil {
		return fmt.Errorf("answer of node %d to pull %d: %w", m.Sender, m.Meta.Timestamp, err)
	}
	return nil
}

// copyPart copies a server's part of the answer to where it belongs. It must have
// exactly the keys of the request's part: whatever is between worker and server has
// to keep that.
func (t *transfer) copyPart(m *van.Message) error {
	role, s, ok := pslite.Rank(int32(m.Sender))
	if !ok || role != pslite.Server || s >= len(t.keyAt)-1 {
		return fmt.Errorf("it is no server")
	}
	p, err := open(m)
	if err != nil {
		return err
	}
	// An answer has the keys that were asked for, in their order, or somebody has
	// mixed up two requests.
	want := t.Keys[t.keyAt[s]:t.keyAt[s+1]]
	if !bytes.Equal(bytesOf(p.keys), bytesOf(want)) {
		return fmt.Errorf("%d keys that are not the %d pulled ones", len(p.keys), len(want))
	}
	out := t.Out[t.valAt[s]:t.valAt[s+1]]
	if len(p.vals) != len(out) {
		return fmt.Errorf("%d values for %d keys, want %d", len(p.vals), len(want), len(out))
	}
	if t.Lens != nil && p.lens != nil && !slices.Equal(p.lens, t.Lens[t.keyAt[s]:t.keyAt[s+1]]) {
		return fmt.Errorf("lengths differ from the requested ones")
	}
	copy(out, p.vals)
	return nil
}

// finish is called when all servers have answered, in the goroutine of handle.
func (w *Worker) finish(ts int32, t *transfer) error {
	w.inFlight.Delete(ts)
	if w.log == nil || len(t.Keys) == 0 {
		return nil
	}
	w.logMu.Lock()
	defer w.logMu.Unlock()
	if t.push {
		w.log.Push(t.Keys, len(t.Vals)/len(t.Keys), t.Lens)
	}
	if t.pull {
		w.log.Pull(t.Keys, len(t.Out)/len(t.Keys), t.Lens)
	}
	return nil
}
