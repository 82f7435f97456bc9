package page

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"mime"
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

// NamesControl serves GET and PUT /api/v1/names. PUT replaces the names until their file
// changes. Its body is the content of such a file, in YAML or (as text/csv) in CSV, or (as
// application/json) an answer of GET. The server that mounts it must authenticate callers and
// bound the size of bodies.
func NamesControl(f *NameFile) http.Handler {
	s := server{names: f}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /api/v1/names", answer(s.namesOf))
	mux.HandleFunc("PUT /api/v1/names", answer(s.setNames))
	return mux
}

// setNames answers PUT /api/v1/names, with the new names.
func (s server) setNames(r *http.Request) (Names, error) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		code := http.StatusBadRequest
		var large *http.MaxBytesError
		if errors.As(err, &large) {
			code = http.StatusRequestEntityTooLarge
		}
		return Names{}, badRequest{code, "reading names: " + err.Error()}
	}
	m, err := parseNames(r.Header.Get("Content-Type"), body)
	if err != nil {
		return Names{}, badRequest{http.StatusBadRequest, "names of keys: " + err.Error()}
	}
	s.names.Set(m)
	slog.Info("key names changed", "ranges", len(m.Ranges("")))
	return s.namesOf(r)
}

// parseNames parses names of a media type. Unknown types are taken for YAML, since clients
// rarely name that.
func parseNames(media string, body []byte) (*NameMap, error) {
	if kind, _, err := mime.ParseMediaType(media); err == nil {
		media = kind
	}
	switch media {
	case "application/json":
		var list Names
		d := json.NewDecoder(bytes.NewReader(body))
		d.DisallowUnknownFields()
		if err := d.Decode(&list); err != nil {
			return nil, err
		}
		if list.Names == nil {
			return nil, errors.New(`want {"names": [...]}`)
		}
		ranges := make([]NamedRange, len(list.Names))
		for i := range list.Names {
			ranges[i] = list.Names[i].NamedRange
		}
		return NewNameMap(ranges)
	case "text/csv":
		return ParseNames(".csv", body)
	}
	return ParseNames("", body)
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
