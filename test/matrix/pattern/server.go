package pattern

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"sync"

	"github.com/psidecar/psidecar/cmd/psjob/van"
	"github.com/psidecar/psidecar/internal/wire/pslite"
)

// server serves all apps of a pattern; mu guards its store and what it collects.
type server struct {
	*Pattern
	van *van.Van

	mu      sync.Mutex
	store   *store
	waiting map[slot][]func() error // answers to pushes that wait for those of other workers
}

func (p *Pattern) serve(v *van.Van) error {
	s := &server{Pattern: p, van: v, store: newStore(p.Handler), waiting: map[slot][]func() error{}}
	for _, app := range p.apps() {
		if _, err := v.NewCustomer(int(app), int(app), s.handle); err != nil {
			return err
		}
	}
	return nil
}

// key returns the key that a request means. One that is not the pattern's is a scratch key of as many numbers as were
// pushed.
func (p *Pattern) key(m *pslite.Meta, key uint64, pushed int) *Key {
	for i := range p.Keys {
		k := &p.Keys[i]
		head := k.Pull
		if m.Push {
			head = k.Push
		}
		if k.Key == key && (k.App == m.AppID || p.Dialect == pslite.DMLC2017) && head == m.Head {
			return k
		}
	}
	return &Key{Key: key, App: m.AppID, Table: m.Head, Push: m.Head, Pull: m.Head, Kind: p.Keys[0].Kind, Type: p.Keys[0].Type, Width: max(1, pushed/p.Keys[0].Kind.size())}
}

// handle answers a request.
func (s *server) handle(ctx context.Context, m *van.Message) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	back := van.NewMessage(m.Sender)
	back.Meta.AppID, back.Meta.CustomerID, back.Meta.Timestamp = m.Meta.AppID, m.Meta.CustomerID, m.Meta.Timestamp
	back.Meta.Push, back.Meta.Pull, back.Meta.Head, back.Meta.SimpleApp = m.Meta.Push, m.Meta.Pull, m.Meta.Head, m.Meta.SimpleApp
	answer := func() error { return s.van.Send(ctx, back) }
	if m.Meta.SimpleApp || len(m.Data) < 2 {
		return answer()
	}
	keys := make([]uint64, len(m.Data[0])/8)
	for i := range keys {
		keys[i] = binary.LittleEndian.Uint64(m.Data[0][8*i:])
	}
	if s.OneKey && len(keys) != 1 {
		return fmt.Errorf("a request of %d keys", len(keys))
	}
	var of []*Key
	vals := m.Data[1]
	for i, key := range keys {
		// Without lengths all values of a request are equally long.
		n := len(vals) / len(keys)
		k := s.key(&m.Meta, key, n)
		of = append(of, k)
		if !m.Meta.Push {
			continue
		}
		from, to := i*n, (i+1)*n
		if len(m.Data) > 2 {
			from, to = 0, 0
			for j := range i + 1 {
				from, to = to, to+s.bytesOfLength(of[j], m.Data[2], j)
			}
		}
		if to > len(vals) || k.Kind == TwoBit && to-from < k.pushed() {
			return fmt.Errorf("values of %d bytes for %d keys, key %d from %d to %d", len(vals), len(keys), key, from, to)
		}
		if err := s.store.push(k, k.decode(vals[from:to])); err != nil {
			return fmt.Errorf("node %d, request %d: %w", m.Sender, m.Meta.Timestamp, err)
		}
	}
	if m.Meta.Pull {
		var values, lens []byte
		for _, k := range of {
			before := len(values)
			values = s.store.pull(k, values)
			lens = binary.LittleEndian.AppendUint32(lens, uint32(s.length(k, len(values)-before)))
		}
		back.AddData(pslite.Uint64, bytes.Clone(m.Data[0]))
		back.AddData(of[0].Type, values)
		if len(m.Data) > 2 || s.AnswerLens {
			back.AddData(pslite.Int32, lens)
		}
	}
	if s.Handler == Collect && m.Meta.Push {
		at := slot{of[0].App, of[0].Table, of[0].Key}
		if s.waiting[at] = append(s.waiting[at], answer); len(s.waiting[at]) == s.Workers || of[0] != s.key(&m.Meta, keys[0], 0) {
			for _, answer := range s.waiting[at] {
				if err := answer(); err != nil {
					return err
				}
			}
			delete(s.waiting, at)
		}
		return nil
	}
	return answer()
}
