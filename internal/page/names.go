package page

import (
	"net/http"
)

// Names is the answer of /api/v1/names?job=: the names of a job's keys; without a job, all
// names.
type Names struct {
	Names []NamedKeys `json:"names"` // by first key; empty: keys have no names (--names)
}

// NamedKeys is a range of keys that has a name.
type NamedKeys struct {
	NamedRange
	FirstText string `json:"first_text"`
	LastText  string `json:"last_text"`
}

// namesOf answers GET /api/v1/names.
func (s server) namesOf(r *http.Request) (Names, error) {
	list := []NamedKeys{}
	for _, n := range s.called().Ranges(r.URL.Query().Get("job")) {
		list = append(list, NamedKeys{n, Key(n.First).Text(), Key(n.Last).Text()})
	}
	return Names{list}, nil
}

// called returns the present names of keys.
func (s server) called() *NameMap {
	if s.names == nil {
		return nil
	}
	return s.names.Map()
}

// Call adds names to the heatmap's blocks. It may be called again with other names.
func (h *Heatmap) Call(m *NameMap) {
	for i := range h.Blocks {
		b := &h.Blocks[i]
		if name := m.Keys(h.Job, uint64(b.First), uint64(b.Last)); name != "" {
			b.Name = name
		}
	}
}

// call sets the names of the hottest keys.
func (k *Keys) call(m *NameMap) {
	for i := range k.Hottest {
		k.Hottest[i].Name = m.Key(k.Job, uint64(k.Hottest[i].Key))
	}
}

// called returns plan with names added to the keys in its answers.
func called(plan func(job string) (Plan, error), f *NameFile) func(job string) (Plan, error) {
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
