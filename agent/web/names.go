package web

import (
	"net/http"

	"github.com/psidecar/psidecar/agent/names"
)

// Names answers /api/v1/names?job=: what a job's keys are called. Without a job
// all names are told.
type Names struct {
	Names []NamedKeys `json:"names"` // by first key; empty: keys have none (--names)
}

// NamedKeys is a range of keys that has a name.
type NamedKeys struct {
	names.Range
	FirstText string `json:"first_text"`
	LastText  string `json:"last_text"`
}

// namesOf answers with the Names.
func (s server) namesOf(r *http.Request) (Names, error) {
	list := []NamedKeys{}
	for _, n := range s.called().Ranges(r.URL.Query().Get("job")) {
		list = append(list, NamedKeys{n, Key(n.First).Text(), Key(n.Last).Text()})
	}
	return Names{list}, nil
}

// called returns what keys are called.
func (s server) called() *names.Map {
	if s.names == nil {
		return nil
	}
	return s.names.Map()
}

// Call puts names to the heatmap's blocks, which may be done again with others.
func (h *Heatmap) Call(m *names.Map) {
	for i := range h.Blocks {
		b := &h.Blocks[i]
		if name := m.Keys(h.Job, uint64(b.First), uint64(b.Last)); name != "" {
			b.Name = name
		}
	}
}

func (k *Keys) call(m *names.Map) {
	for i := range k.Hottest {
		k.Hottest[i].Name = m.Key(k.Job, uint64(k.Hottest[i].Key))
	}
}

// called puts names to a plan's keys.
func called(plan func(job string) (Plan, error), f *names.File) func(job string) (Plan, error) {
	return func(job string) (Plan, error) {
		p, err := plan(job)
		m := f.Map()
		for i := range p.Epochs {
			for k := range p.Epochs[i].Refused {
				r := &p.Epochs[i].Refused[k]
				r.ExampleName = m.Key(job, uint64(r.Example))
			}
		}
		return p, err
	}
}
