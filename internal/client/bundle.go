// This file collects the data that a diagnosis of psidecar on a host needs, in one
// compressed tar file. What cannot be had is named in it, with the reason, and does
// not keep the rest out.
//
// What comes in are sources; psidecar debug calls it. Counts by key are in a
// bundle, values of parameters never are, since nothing of psidecar keeps them.

package client

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"
)

// A BundleSource is one file of a bundle.
type BundleSource struct {
	Name string // path in the bundle
	Read func(ctx context.Context) ([]byte, error)
}

// MaxBundleFile is how much of one source is kept, in bytes.
const MaxBundleFile = 64 << 20

// URLSource is a source that a service answers with.
func URLSource(name, base, path string) BundleSource {
	return BundleSource{name, func(ctx context.Context) ([]byte, error) {
		if !strings.Contains(base, "://") {
			base = "http://" + base
		}
		request, err := http.NewRequestWithContext(ctx, http.MethodGet, strings.TrimSuffix(base, "/")+path, nil)
		if err != nil {
			return nil, err
		}
		answer, err := http.DefaultClient.Do(request)
		if err != nil {
			return nil, err
		}
		defer answer.Body.Close()
		text, err := io.ReadAll(io.LimitReader(answer.Body, MaxBundleFile))
		if err == nil && answer.StatusCode != http.StatusOK {
			err = fmt.Errorf("%s: %s", answer.Status, strings.TrimSpace(string(text[:min(len(text), 200)])))
		}
		return text, err
	}}
}

// Without returns the source without the fields of that name, at any depth, of
// the JSON that it gives: what others need not see.
func (s BundleSource) Without(field string) BundleSource {
	return BundleSource{s.Name, func(ctx context.Context) ([]byte, error) {
		text, err := s.Read(ctx)
		if err != nil {
			return nil, err
		}
		d := json.NewDecoder(bytes.NewReader(text))
		d.UseNumber() // keys are exact
		var v any
		if err := d.Decode(&v); err != nil {
			return nil, fmt.Errorf("not JSON: %w", err)
		}
		drop(v, field)
		return json.Marshal(v)
	}}
}

func drop(v any, field string) {
	switch v := v.(type) {
	case map[string]any:
		delete(v, field)
		for _, inner := range v {
			drop(inner, field)
		}
	case []any:
		for _, inner := range v {
			drop(inner, field)
		}
	}
}

// MissingSource is a source that could not be had.
type MissingSource struct {
	Name string
	Err  error
}

// WriteBundle writes a bundle, whose files are in a folder of the given name, and
// lists the parts that are missing. Each source has the given time.
func WriteBundle(ctx context.Context, out io.Writer, folder string, each time.Duration, sources []BundleSource) ([]MissingSource, error) {
	compressed := gzip.NewWriter(out)
	w := tar.NewWriter(compressed)
	add := func(name string, text []byte) error {
		err := w.WriteHeader(&tar.Header{Name: folder + "/" + name, Mode: 0o644, Size: int64(len(text)), ModTime: time.Now(), Format: tar.FormatPAX})
		if err == nil {
			_, err = w.Write(text)
		}
		if err != nil {
			return fmt.Errorf("writing %s to the bundle: %w", name, err)
		}
		return nil
	}
	var missing []MissingSource
	var reasons strings.Builder
	for _, s := range sources {
		patience, cancel := context.WithTimeout(ctx, each)
		text, err := s.Read(patience)
		cancel()
		if ctx.Err() != nil {
			return missing, ctx.Err()
		}
		if err != nil {
			missing = append(missing, MissingSource{s.Name, err})
			fmt.Fprintf(&reasons, "%s: %v\n", s.Name, err)
			continue
		}
		if err := add(s.Name, text); err != nil {
			return missing, err
		}
	}
	if len(missing) > 0 {
		if err := add("missing.txt", []byte(reasons.String())); err != nil {
			return missing, err
		}
	}
	return missing, errors.Join(w.Close(), compressed.Close())
}
