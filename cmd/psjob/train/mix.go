package train

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/psidecar/psidecar/cmd/psjob/kv"
	"github.com/psidecar/psidecar/cmd/psjob/van"
)

// mixApps is how many apps, besides app 0, every server serves for mix.
const mixApps = 3

// serveMix starts the apps of mix on a server. They are there in every job: a server
// does not know which model workers train.
func serveMix(v *van.Van) error {
	for app := 1; app <= mixApps; app++ {
		st, err := kv.NewStore(kv.StoreSettings{Rule: "add"})
		if err != nil {
			return err
		}
		if _, err := kv.NewServer(v, app, &mixHandler{Store: st, last: map[uint64]int32{}}); err != nil {
			return err
		}
	}
	return nil
}

// mixHandler adds, demands numbered requests in order, and answers commands with
// their bodies reversed.
type mixHandler struct {
	*kv.Store
	last map[uint64]int32 // the last number, by the first key, which only one sender uses
}

// maxOrders bounds how many senders may number their pushes.
const maxOrders = 1 << 16

// Push implements [kv.Handler]. A head above 0 numbers the pushes of a sender, which
// must come in order and each once. An error ends the server and with it the job, so
// that a violation cannot be overlooked.
func (h *mixHandler) Push(head int32, keys []uint64, vals []float32, lens []int32) error {
	if head > 0 && len(keys) > 0 {
		if last := h.last[keys[0]]; head != last+1 {
			return fmt.Errorf("push %d of key %d arrived after push %d: wrong order", head, keys[0], last)
		}
		if len(h.last) >= maxOrders {
			return fmt.Errorf("more than %d senders number their pushes", maxOrders)
		}
		h.last[keys[0]] = head
	}
	return h.Store.Push(0, keys, vals, lens)
}

// Command implements [kv.Handler].
func (h *mixHandler) Command(c kv.Command) ([]byte, error) {
	slices.Reverse(c.Body)
	return c.Body, nil
}

// A mixer is one of a worker's customers of one app. Each has a goroutine, its own
// keys, and a number of steps; all share the van, whose messages get mixed.
type mixer struct {
	*worker
	kv        *kv.Worker
	app, cust int
	random    *rand.Rand
	lens      []int32   // how many values each of its own keys has
	sums      []float32 // what each value of each of these must be
	numbered  int32     // pushes so far
	shared    int32     // how often it added to the shared keys
	checked   int
}

const (
	mixKeys   = 24 // of each mixer's own
	mixShared = 100
	mixBurst  = 16
)

// startMix makes the customers, before the job begins: messages for a customer that
// does not exist yet would wait.
func (w *worker) startMix() error {
	if w.van.Config().Resend && w.Mix.Customers > 1 {
		return fmt.Errorf("--mix-customers %d with PS_RESEND: its signatures do not tell an app's customers apart; use 1", w.Mix.Customers)
	}
	for app := 1; app <= mixApps; app++ {
		// The customers of an app share the server's store, and its one customer.
		for cust := range w.Mix.Customers {
			k, err := kv.NewWorker(w.van, app, cust, nil)
			if err != nil {
				return err
			}
			m := &mixer{worker: w, kv: k, app: app, cust: cust}
			m.random = rand.New(rand.NewPCG(w.Seed, uint64(w.van.Rank()*64+app*16+cust)))
			for i := range mixKeys {
				// From no value to the longest, each about twice as long as the one
				// before.
				n := int(math.Pow(float64(max(w.Mix.Longest, 1)), float64(i)/(mixKeys-1))) - 1 + i%2
				m.lens = append(m.lens, int32(min(n, w.Mix.Longest)))
				m.sums = append(m.sums, 0)
			}
			w.mixers = append(w.mixers, m)
		}
	}
	return nil
}

// key spreads numbers over all servers, in their order. The last term is different
// for each mixer of the job, so that no two have a key in common, and a value that
// changes without this mixer's doing is an error.
func (m *mixer) key(number, of int) uint64 {
	return math.MaxUint64/uint64(of)*uint64(number) + uint64(m.van.Rank()*64+m.app*16+m.cust) + 1
}

// mix has all of a worker's customers push, pull, command and check at the same time.
// It exercises everything that PS-lite's clients can do, so that a proxy that
// mistakes one message for another is found out.
func (w *worker) mix(ctx context.Context) error {
	steps := w.Steps
	if steps == 0 {
		steps = 50 * w.Epochs
	}
	began := time.Now()
	// The first mixer that fails ends the others, which might wait for it otherwise.
	g, work := errgroup.WithContext(ctx)
	for _, m := range w.mixers {
		g.Go(func() error {
			logged := time.Now()
			for step := range steps {
				if err := m.step(work, step); err != nil {
					return fmt.Errorf("app %d, customer %d, step %d: %w", m.app, m.cust, step, err)
				}
				if m.due(&logged, step+1, steps) {
					w.logger.Info("mixing", "rank", w.van.Rank(), "app", m.app, "customer", m.cust, "step", step+1, "of", steps)
				}
			}
			return nil
		})
	}
	if err := g.Wait(); err != nil {
		return err
	}
	if w.Mix.Largest > 0 && w.van.Rank() == 0 {
		if err := w.mixers[0].large(ctx, w.Mix.Largest); err != nil {
			return fmt.Errorf("a value of %d numbers: %w", w.Mix.Largest, err)
		}
	}
	w.report.Steps, w.report.Seconds = steps, since(began)
	w.report.StepsPerSecond = float64(steps) / w.report.Seconds
	// All workers have added to the shared keys before any reads them.
	if err := w.van.Barrier(ctx, van.Workers); err != nil {
		return err
	}
	for _, m := range w.mixers {
		if err := m.checkShared(ctx); err != nil {
			return fmt.Errorf("app %d, customer %d: %w", m.app, m.cust, err)
		}
		w.report.Checked += m.checked
	}
	return w.van.Barrier(ctx, van.Workers)
}

// step does one of five things in turn. Each leaves sums that the next can check. All
// mixers do the same one in the same step, but in their own time, so that their
// messages mix.
func (m *mixer) step(ctx context.Context, step int) error {
	switch step % 5 {
	case 0:
		return m.burst(ctx)
	case 1:
		return m.own(ctx, true)
	case 2:
		return m.own(ctx, false)
	case 3:
		return m.command(ctx)
	}
	return m.addShared(ctx)
}

// wait waits for the answers to a request, whose two results it takes as they are
// returned.
func (m *mixer) wait(ctx context.Context, ts int32, err error) error {
	if err != nil {
		return err
	}
	return m.kv.Wait(ctx, ts)
}

// burst makes pushes that do not wait for each other's answers, to keys of this
// customer's alone, one at each server. Servers must see them in this order: a
// connection keeps it, and so must whatever is in between. Retransmitted messages may
// overtake others, so with PS_RESEND they are not numbered.
func (m *mixer) burst(ctx context.Context) error {
	servers := m.van.Config().Servers
	r := kv.Request{Out: make([]float32, servers)}
	for s := range servers {
		// Away from this mixer's other keys, which lie up to a few dozen apart.
		r.Keys = append(r.Keys, m.key(s, servers)+1<<20)
		r.Vals = append(r.Vals, 1)
	}
	var sent []int32
	for range mixBurst {
		// The server refuses a gap or a repetition in these numbers.
		m.numbered++
		if !m.van.Config().Resend {
			r.Head = m.numbered
		}
		ts, err := m.kv.Push(ctx, r)
		if err != nil {
			return err
		}
		sent = append(sent, ts)
	}
	for _, ts := range sent {
		if err := m.kv.Wait(ctx, ts); err != nil {
			return err
		}
	}
	// Only pushes are numbered.
	r.Head = 0
	ts, err := m.kv.Pull(ctx, r)
	if err := m.wait(ctx, ts, err); err != nil {
		return err
	}
	return m.compare("numbered pushes", r.Out, func(int) float32 { return float32(m.numbered) })
}

// own pushes some of this customer's own keys, with lengths, and pulls them, in one
// request or in two. No other customer uses these keys, so each value must be the sum
// so far. Some keys have no values at all, others very many: lengths on the wire
// decide where each begins, and a mistake about one shifts all that follow.
func (m *mixer) own(ctx context.Context, together bool) error {
	var r kv.Request
	var want []float32
	for i, n := range m.lens {
		// A third of the keys, others each time, so that requests differ in which
		// servers they reach.
		if m.random.IntN(3) > 0 {
			continue
		}
		v := float32(m.random.IntN(9) + 1)
		m.sums[i] += v
		r.Keys, r.Lens = append(r.Keys, m.key(i, mixKeys)), append(r.Lens, n)
		for range n {
			r.Vals, want = append(r.Vals, v), append(want, m.sums[i])
		}
	}
	r.Out = make([]float32, len(r.Vals))
	if together {
		ts, err := m.kv.PushPull(ctx, r)
		if err := m.wait(ctx, ts, err); err != nil {
			return err
		}
	} else {
		ts, err := m.kv.Push(ctx, r)
		if err := m.wait(ctx, ts, err); err != nil {
			return err
		}
		ts, err = m.kv.Pull(ctx, r)
		if err := m.wait(ctx, ts, err); err != nil {
			return err
		}
	}
	return m.compare("own keys", r.Out, func(i int) float32 { return want[i] })
}

// command has all servers reverse a text of random bytes, of random length.
func (m *mixer) command(ctx context.Context) error {
	// Mostly short texts, some of up to 16 KiB.
	body := make([]byte, m.random.IntN(1<<m.random.IntN(15)))
	for i := range body {
		body[i] = byte(m.random.Uint32())
	}
	answers, err := m.kv.Command(ctx, int32(len(body)), body, van.Servers)
	if err != nil {
		return err
	}
	if want := m.van.Config().Servers; len(answers) != want {
		return fmt.Errorf("%d answers to a command, want %d", len(answers), want)
	}
	for _, a := range answers {
		// Reversed once more it must be the body that was sent.
		if slices.Reverse(a.Body); a.Head != int32(len(body)) || !bytes.Equal(a.Body, body) {
			return fmt.Errorf("node %d answers a command of %d bytes, number %d, with %d bytes, or others", a.From, len(body), a.Head, len(a.Body))
		}
		m.checked++
	}
	return nil
}

// addShared adds 1 to keys that all customers of the app share, and then pushes
// nothing at all, which must be answered, too.
func (m *mixer) addShared(ctx context.Context) error {
	r := m.sharedKeys()
	for i := range r.Vals {
		r.Vals[i] = 1
	}
	m.shared++
	ts, err := m.kv.Push(ctx, r)
	if err := m.wait(ctx, ts, err); err != nil {
		return err
	}
	// PS-lite sends such a request to nobody, and it counts as answered.
	ts, err = m.kv.Push(ctx, kv.Request{})
	return m.wait(ctx, ts, err)
}

// sharedKeys returns a request for the shared keys of the app, spread over all
// servers, with room for their values.
func (m *mixer) sharedKeys() kv.Request {
	r := kv.Request{Vals: make([]float32, mixShared), Out: make([]float32, mixShared)}
	for i := range mixShared {
		r.Keys = append(r.Keys, math.MaxUint64/mixShared*uint64(i)+1<<30)
	}
	return r
}

// checkShared compares the shared sums, to which all customers of all workers have
// added as often as this one.
func (m *mixer) checkShared(ctx context.Context) error {
	r := m.sharedKeys()
	ts, err := m.kv.Pull(ctx, r)
	if err := m.wait(ctx, ts, err); err != nil {
		return err
	}
	// All mixers make the same number of steps, so each has added as often as this
	// one.
	want := float32(int(m.shared) * m.Mix.Customers * m.van.Config().Workers)
	return m.compare("shared keys", r.Out, func(int) float32 { return want })
}

// large pushes and pulls one key with n values: a frame that no buffer on the way may
// cut or refuse. Neighbouring values differ, so that a shifted piece is found.
func (m *mixer) large(ctx context.Context, n int) error {
	r := kv.Request{Keys: []uint64{math.MaxUint64/2 + 1<<40}, Vals: make([]float32, n), Out: make([]float32, n)}
	value := func(i int) float32 { return float32(i%8191 - 4000) }
	for i := range r.Vals {
		r.Vals[i] = value(i)
	}
	ts, err := m.kv.Push(ctx, r)
	if err := m.wait(ctx, ts, err); err != nil {
		return err
	}
	ts, err = m.kv.Pull(ctx, kv.Request{Keys: r.Keys, Out: r.Out})
	if err := m.wait(ctx, ts, err); err != nil {
		return err
	}
	return m.compare("one long key", r.Out, value)
}

var errWrongValue = errors.New("not the pushed value")

// compare compares pulled values with what they must be, and counts them.
func (m *mixer) compare(what string, got []float32, want func(i int) float32) error {
	for i, v := range got {
		if v != want(i) {
			return fmt.Errorf("%s: value %d of %d is %v, want %v: %w", what, i, len(got), v, want(i), errWrongValue)
		}
	}
	m.checked += len(got)
	return nil
}
