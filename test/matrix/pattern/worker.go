package pattern

import (
	"bytes"
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/psidecar/psidecar/cmd/psjob/van"
	"github.com/psidecar/psidecar/internal/wire/pslite"
)

// worker is a worker of a pattern.
type worker struct {
	*Pattern
	Options
	van       *van.Van
	customers map[int32][]*van.Customer // by app

	mu     sync.Mutex // guards the rest
	pulls  map[pullID]pull
	latest [][]byte    // the values of all keys, as pulled last
	own    [][]float64 // what this worker has pushed of them, all in all
	wrong  []error
}

// pullID names a request whose answers are awaited.
type pullID struct{ app, customer, timestamp int32 }

// pull is such a request: its keys by server, and the values of all keys that had been pulled when it was sent. Answers to
// others that are in flight beside it may come earlier or later.
type pull struct {
	keys   map[int][]int
	before [][]byte
}

func (p *Pattern) newWorker(v *van.Van, o Options) (*worker, error) {
	w := &worker{Pattern: p, Options: o, van: v, customers: map[int32][]*van.Customer{}, pulls: map[pullID]pull{}, latest: make([][]byte, len(p.Keys))}
	for _, k := range p.Keys {
		w.own = append(w.own, make([]float64, k.Width))
	}
	for _, app := range p.apps() {
		for id := range p.Customers {
			// Processes of 2017 have one id for app and customer.
			if p.Dialect == pslite.DMLC2017 {
				id = int(app)
			}
			c, err := v.NewCustomer(int(app), id, func(_ context.Context, m *van.Message) error { return w.handle(int32(id), m) })
			if err != nil {
				return nil, err
			}
			w.customers[app] = append(w.customers[app], c)
		}
	}
	return w, nil
}

// handle takes an answer.
func (w *worker) handle(customer int32, m *van.Message) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(m.Data) == 0 {
		return nil
	}
	p, ok := w.pulls[pullID{m.Meta.AppID, customer, m.Meta.Timestamp}]
	_, server, _ := pslite.Rank(int32(m.Sender))
	if !ok || len(m.Data) < 2 {
		return fmt.Errorf("node %d answers request %d, which is no pull", m.Sender, m.Meta.Timestamp)
	}
	keys := p.keys[server]
	var want []byte
	for _, key := range keys {
		want = binary.LittleEndian.AppendUint64(want, w.Keys[key].Key)
	}
	if !bytes.Equal(m.Data[0], want) {
		return fmt.Errorf("the answer of node %d to request %d has keys %x, want %x", m.Sender, m.Meta.Timestamp, m.Data[0], want)
	}
	vals := m.Data[1]
	for i, key := range keys {
		k := &w.Keys[key]
		n := k.Pulled()
		if len(m.Data) > 2 && w.bytesOfLength(k, m.Data[2], i) != n || n > len(vals) {
			return fmt.Errorf("the answer of node %d to request %d has another length for key %d than %d bytes: lengths %x, %d bytes are left", m.Sender, m.Meta.Timestamp, k.Key, n, m.Data[2:], len(vals))
		}
		got := bytes.Clone(vals[:n])
		vals = vals[n:]
		w.check(key, p.before[key], got)
		w.latest[key] = got
	}
	if len(vals) > 0 {
		return fmt.Errorf("the answer of node %d to request %d has %d bytes too many", m.Sender, m.Meta.Timestamp, len(vals))
	}
	return nil
}

// check compares a pulled value with the last one that had come when it was asked for, and with what this worker has pushed:
// sums of positive numbers only grow. What is repeated may be overtaken.
func (w *worker) check(key int, last, got []byte) {
	k := &w.Keys[key]
	if !w.Exact || w.Handler != Add || w.Value != nil || w.Resends() || len(w.wrong) > 8 {
		return
	}
	before := k.Kind.Numbers(last)
	for i, v := range k.Kind.Numbers(got) {
		if v < w.own[key][i] || len(before) > 0 && v < before[i] {
			w.wrong = append(w.wrong, fmt.Errorf("WRONG VALUE: number %d of key %d is %v, this worker has pushed %v; before it was %v", i, k.Key, v, w.own[key][i], before[min(i, len(before)):]))
			return
		}
	}
}

// sent is a request to wait for.
type sent struct {
	customer  *van.Customer
	timestamp int32
}

// send sends a request for keys of one app to their servers, cut as the pattern's slicer does. round counts from 0.
func (w *worker) send(ctx context.Context, request []int, round, nth int, push, pulls bool) (*sent, error) {
	byServer := map[int][]int{}
	var nodes []int
	for _, key := range request {
		if !w.mine(w.van.Rank(), key) || push && w.Keys[key].Unused {
			continue
		}
		s := w.server(key)
		if byServer[s] == nil {
			nodes = append(nodes, int(pslite.ServerID(s)))
		}
		byServer[s] = append(byServer[s], key)
	}
	if len(nodes) == 0 {
		return nil, nil
	}
	app := w.Keys[request[0]].App
	id := nth % w.Customers
	c := w.customers[app][id]
	if w.Dialect == pslite.DMLC2017 {
		id = int(app)
	}
	ts, err := c.NewRequest(nodes, nil)
	if err != nil {
		return nil, err
	}
	if pulls {
		w.mu.Lock()
		w.pulls[pullID{app, int32(id), ts}] = pull{byServer, slices.Clone(w.latest)}
		w.mu.Unlock()
	}
	for _, node := range nodes {
		_, rank, _ := pslite.Rank(int32(node))
		m := van.NewMessage(node)
		m.Meta.AppID, m.Meta.CustomerID, m.Meta.Timestamp, m.Meta.Request = app, int32(id), ts, true
		m.Meta.Push, m.Meta.Pull = push, pulls
		if m.Meta.Priority = 0; w.Priorities {
			m.Meta.Priority = int32(-nth)
		}
		var keys, vals, lens []byte
		for _, key := range byServer[rank] {
			k := &w.Keys[key]
			m.Meta.Head = k.Pull
			keys = binary.LittleEndian.AppendUint64(keys, k.Key)
			length := w.length(k, k.Pulled())
			if push {
				m.Meta.Head = k.Push
				before := len(vals)
				vals = w.push(vals, round, key)
				length = w.length(k, len(vals)-before)
			}
			lens = binary.LittleEndian.AppendUint32(lens, uint32(length))
		}
		m.AddData(pslite.Uint64, keys)
		m.AddData(w.Keys[byServer[rank][0]].Type, vals)
		if w.Lens && (push || !w.AnswerLens) {
			m.AddData(pslite.Int32, lens)
		}
		if err := w.van.Send(ctx, m); err != nil {
			return nil, err
		}
	}
	return &sent{c, ts}, nil
}

// push appends what is pushed of a key.
func (w *worker) push(vals []byte, round, key int) []byte {
	w.mu.Lock()
	defer w.mu.Unlock()
	numbers := w.numbers(w.van.Rank(), round, key)
	for i, v := range numbers {
		w.own[key][i] += v
	}
	return w.Keys[key].encode(vals, numbers)
}

// all sends all requests of a kind, and returns those to wait for.
func (w *worker) all(ctx context.Context, round int, push, pulls bool) (all []sent, err error) {
	for i, r := range w.Requests {
		s, err := w.send(ctx, r, round, i, push, pulls)
		if err != nil {
			return nil, err
		}
		if s == nil {
			continue
		}
		if all = append(all, *s); w.Wait {
			if err := s.customer.Wait(ctx, s.timestamp); err != nil {
				return nil, err
			}
		}
	}
	return all, nil
}

// round pushes and pulls all keys once, and waits at its end.
func (w *worker) round(ctx context.Context, round int) error {
	var waits []sent
	for _, part := range map[bool][][2]bool{false: {{true, false}, {false, true}}, true: {{true, true}}}[w.PushPull] {
		more, err := w.all(ctx, round, part[0], part[1])
		if err != nil {
			return err
		}
		waits = append(waits, more...)
	}
	for _, s := range waits {
		if err := s.customer.Wait(ctx, s.timestamp); err != nil {
			return err
		}
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	clear(w.pulls)
	return errors.Join(w.wrong...)
}

// more reports whether there is another round. Where servers wait for all workers' pushes the first worker says which is
// the last: others cannot be a round ahead of it.
func (w *worker) more(round int) bool {
	if round < cmp.Or(w.Options.Rounds, w.Pattern.Rounds) {
		return true
	}
	if w.Out == "" {
		return false
	}
	goesOn := func(file string) bool { _, err := os.Stat(file); return err == nil }
	if w.Handler != Collect {
		return goesOn(w.While)
	}
	last := filepath.Join(w.Out, "last")
	if w.van.Rank() == 0 && !goesOn(w.While) && !goesOn(last) {
		if os.WriteFile(last+"~", []byte(strconv.Itoa(round+2)), 0o644) != nil || os.Rename(last+"~", last) != nil {
			return false
		}
	}
	text, err := os.ReadFile(last)
	if err != nil {
		return true
	}
	n, err := strconv.Atoi(string(text))
	return err != nil || round < n
}

// work makes rounds, waits for the other workers, and pulls everything.
func (w *worker) work(ctx context.Context) error {
	rounds, logged := 0, time.Now()
	if w.van.Recovered() {
		rounds = w.Left
	}
	for ; w.more(rounds); rounds++ {
		if w.Left > 0 && rounds == w.Left && w.van.Rank() == w.Workers-1 && !w.van.Recovered() {
			return ErrLeft
		}
		until := time.Now().Add(w.Pause)
		if time.Since(logged) > 500*time.Millisecond {
			logged = time.Now()
			w.van.Config().Logger.Info("going on", "step", rounds+1, "of", cmp.Or(w.Options.Rounds, w.Pattern.Rounds))
		}
		if err := w.round(ctx, rounds); err != nil {
			return fmt.Errorf("round %d: %w", rounds, err)
		}
		time.Sleep(time.Until(until))
	}
	if err := w.van.Barrier(ctx, van.Workers); err != nil {
		return err
	}
	for range max(1, w.Again) {
		waits, err := w.all(ctx, 0, false, true)
		if err != nil {
			return err
		}
		for _, s := range waits {
			if err := s.customer.Wait(ctx, s.timestamp); err != nil {
				return err
			}
		}
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if err := errors.Join(w.wrong...); err != nil {
		return fmt.Errorf("at the end: %w", err)
	}
	if w.Out == "" {
		if err := w.compare(rounds); err != nil {
			return err
		}
		return w.van.Barrier(ctx, van.Workers)
	}
	out := binary.LittleEndian.AppendUint64(nil, uint64(rounds))
	for i, v := range w.latest {
		if v == nil { // another worker's
			v = make([]byte, w.Keys[i].Pulled())
		}
		out = append(out, v...)
	}
	if err := os.WriteFile(filepath.Join(w.Out, strconv.Itoa(w.van.Rank())), out, 0o644); err != nil {
		return err
	}
	return w.van.Barrier(ctx, van.Workers)
}

// compare compares what was pulled with what all workers' rounds make; the caller holds w.mu.
func (w *worker) compare(rounds int) error {
	want, err := w.Expect(slices.Repeat([]int{rounds}, w.Workers))
	for i := range w.Keys {
		if k := &w.Keys[i]; err == nil && w.mine(w.van.Rank(), i) && !bytes.Equal(w.latest[i], want[i]) {
			err = fmt.Errorf("WRONG VALUE: after %d rounds key %d is %v, want %v", rounds, k.Key, k.Kind.Numbers(w.latest[i]), k.Kind.Numbers(want[i]))
		}
	}
	return err
}
