package plan

import (
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
)

// PlacementVersion is the version of the file format (FORMAT.md) that this package writes. It reads
// no other.
const PlacementVersion = 1

// fileJSON and runJSON are the file's objects, field by field as in FORMAT.md.
type fileJSON struct {
	Version   int       `json:"version"`
	Job       string    `json:"job,omitempty"`
	Epoch     uint64    `json:"epoch"`
	K         int       `json:"k"`
	Algorithm string    `json:"algorithm,omitempty"`
	Servers   []int     `json:"servers"`
	Runs      []runJSON `json:"runs"`
}

type runJSON struct {
	First  uint64 `json:"first"`
	Last   uint64 `json:"last"`
	Owner  *int32 `json:"owner,omitempty"`
	Count  int    `json:"count,omitempty"`
	Gaps   string `json:"gaps,omitempty"`
	Owners string `json:"owners,omitempty"`
}

// WritePlacement writes p as JSON, one run per line, so that the whole file is never in memory and
// two of them can be compared by line.
func WritePlacement(w io.Writer, p *Placement) error {
	out, err := NewPlacementWriter(w, p)
	if err != nil {
		return err
	}
	for i := range p.Runs {
		if err := out.writeRun(&p.Runs[i]); err != nil {
			return err
		}
	}
	return out.Close()
}

// encode returns a run as it is written. A list has its keys as gaps to the one before, in base64
// of LEB128: neighbouring keys take a byte each.
func encode(r *PlacedRun) runJSON {
	j := runJSON{First: r.First, Last: r.Last}
	if r.Keys == nil {
		j.Owner = &r.Owners[0]
		return j
	}
	j.Count = len(r.Keys)
	var gaps, owners []byte
	for i, key := range r.Keys {
		if i > 0 {
			gaps = binary.AppendUvarint(gaps, key-r.Keys[i-1]-1)
		}
		owners = binary.AppendUvarint(owners, uint64(r.Owners[i]))
	}
	j.Gaps, j.Owners = base64.StdEncoding.EncodeToString(gaps), base64.StdEncoding.EncodeToString(owners)
	return j
}

// decode is the inverse of encode. It checks lengths and overflow; Validate checks the rest.
func decode(j *runJSON) (PlacedRun, error) {
	r := PlacedRun{First: j.First, Last: j.Last}
	if j.Owner != nil {
		if j.Count != 0 || j.Gaps != "" || j.Owners != "" {
			return r, errors.New(`has "owner" and a list: want one of them`)
		}
		r.Owners = []int32{*j.Owner}
		return r, nil
	}
	gaps, err := base64.StdEncoding.DecodeString(j.Gaps)
	if err != nil {
		return r, fmt.Errorf(`"gaps": %w`, err)
	}
	owners, err := base64.StdEncoding.DecodeString(j.Owners)
	if err != nil {
		return r, fmt.Errorf(`"owners": %w`, err)
	}
	// Each owner takes at least a byte. This bounds the allocation below by the size of the input.
	if j.Count < 1 || j.Count > len(owners) {
		return r, fmt.Errorf(`"count" is %d, but "owners" has %d bytes`, j.Count, len(owners))
	}
	r.Keys, r.Owners = make([]uint64, 0, j.Count), make([]int32, 0, j.Count)
	key := j.First
	for i := range j.Count {
		if i > 0 {
			gap, n := binary.Uvarint(gaps)
			// The second condition is an overflow of 64 bits.
			if n <= 0 || key+gap+1 <= key {
				return r, fmt.Errorf(`"gaps" ends or overflows after %d keys of %d`, i, j.Count)
			}
			key, gaps = key+gap+1, gaps[n:]
		}
		owner, n := binary.Uvarint(owners)
		if n <= 0 || owner > 1<<31-1 {
			return r, fmt.Errorf(`"owners" ends or overflows after %d keys of %d`, i, j.Count)
		}
		owners = owners[n:]
		r.Keys, r.Owners = append(r.Keys, key), append(r.Owners, int32(owner))
	}
	if len(gaps) != 0 || len(owners) != 0 {
		return r, fmt.Errorf(`"gaps" or "owners" go on after %d keys`, j.Count)
	}
	return r, nil
}

// ReadPlacement reads and validates a placement. It reads r to the end of the object and keeps all
// keys in memory.
func ReadPlacement(r io.Reader) (*Placement, error) {
	var f fileJSON
	d := json.NewDecoder(r)
	if err := d.Decode(&f); err != nil {
		return nil, fmt.Errorf("reading a placement: %w", err)
	}
	if f.Version != PlacementVersion {
		return nil, fmt.Errorf("reading a placement: version %d, want %d: rewrite it with psidecar partition --out", f.Version, PlacementVersion)
	}
	p := &Placement{Job: f.Job, Epoch: f.Epoch, K: f.K, Algorithm: f.Algorithm, Server: f.Servers}
	for i := range f.Runs {
		run, err := decode(&f.Runs[i])
		if err != nil {
			return nil, fmt.Errorf("reading a placement: run %d of keys %w", i, err)
		}
		p.Runs = append(p.Runs, run)
	}
	if err := p.Validate(); err != nil {
		return nil, fmt.Errorf("reading a placement: %w", err)
	}
	return p, nil
}

// ReadPlacementFile reads and validates the placement in a file.
func ReadPlacementFile(path string) (*Placement, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("opening the placement: %w", err)
	}
	defer f.Close()
	p, err := ReadPlacement(f)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return p, nil
}

// WritePlacementFile writes p to a temporary file and renames it, so that path has either the old
// content or the new.
func WritePlacementFile(path string, p *Placement) error {
	f, err := os.CreateTemp(filepath.Dir(path), ".placement-*")
	if err != nil {
		return fmt.Errorf("writing the placement: %w", err)
	}
	defer os.Remove(f.Name())
	err = WritePlacement(f, p)
	if err == nil {
		err = f.Chmod(0o644)
	}
	if closeErr := f.Close(); err == nil {
		err = closeErr
	}
	if err == nil {
		err = os.Rename(f.Name(), path)
	}
	if err != nil {
		return fmt.Errorf("writing the placement %s: %w", path, err)
	}
	return nil
}
