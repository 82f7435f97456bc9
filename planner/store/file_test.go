package store

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/psidecar/psidecar/test/require"
)

// TestHarmedWhileOpen cuts a store under those who use it, and fails the write of a header. What was
// written before and after that is there.
func TestHarmedWhileOpen(t *testing.T) {
	for name, harm := range map[string]func(s *File) error{
		"cut": func(s *File) error { return os.Truncate(s.path, 2*trialPage) },
		"a header half way": func(s *File) error {
			s.torn = true
			_, err := s.file.WriteAt(make([]byte, 9), s.head.next(make([]byte, 4)).at())
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			now, _, want := real(t)
			path := filepath.Join(t.TempDir(), "plans")
			require.NoError(t, os.WriteFile(path, now, 0o600))
			s := openFile(t, path)
			require.NoError(t, harm(s))
			require.NoError(t, s.Write(t.Context(), []Entry{{"more", []byte("1")}}))
			want["more"] = "1"
			require.NoError(t, s.Close())
			if got := contents(t, openFile(t, path)); !maps.Equal(got, want) {
				t.Errorf("opened again it has %d entries, want %d, or others", len(got), len(want))
			}
		})
	}
}

// TestRewritten: a log does not grow with what is replaced.
func TestRewritten(t *testing.T) {
	path := filepath.Join(t.TempDir(), "plans")
	s := openFile(t, path)
	want := map[string]string{"stays": "1"}
	require.NoError(t, s.Write(t.Context(), []Entry{{"stays", []byte("1")}}))
	for i := range 60 {
		name := fmt.Sprint("entry ", i%3)
		want[name] = strings.Repeat(string(rune('a'+i%26)), 100_000)
		require.NoError(t, s.Write(t.Context(), []Entry{{name, []byte(want[name])}}))
		if info, err := os.Stat(path); err != nil || info.Size() > 4*slack {
			t.Fatalf("after %d writes it has %d bytes, %v", i, info.Size(), err)
		}
	}
	require.NoError(t, s.Close())
	if got := contents(t, openFile(t, path)); !maps.Equal(got, want) {
		t.Errorf("opened again it has %d entries, want %d, or others", len(got), len(want))
	}
	if left, err := filepath.Glob(path + "*"); err != nil || len(left) != 2 {
		t.Errorf("there are %q, %v; want the store and its lock", left, err)
	}
}

// TestDiskFull: while a store cannot grow it says so, and has what it had.
func TestDiskFull(t *testing.T) {
	path := filepath.Join(t.TempDir(), "plans")
	s := openFile(t, path)
	require.NoError(t, s.Write(t.Context(), []Entry{{"before", []byte("1")}}))
	// A file that is open for reading is as full as one can be without a disk of its own.
	writable := s.file
	s.file = require.Value(os.Open(path))(t)
	if err := s.Write(t.Context(), []Entry{{"full", []byte("2")}}); !errors.Is(err, ErrUnavailable) {
		t.Errorf("a write that fails gives %v", err)
	}
	if got := contents(t, s); !maps.Equal(got, map[string]string{"before": "1"}) {
		t.Errorf("it holds %q", got)
	}
	s.file.Close()
	s.file = writable
	require.NoError(t, s.Write(t.Context(), []Entry{{"after", []byte("3")}}))
	require.NoError(t, s.Close())
	if got := contents(t, openFile(t, path)); !maps.Equal(got, map[string]string{"before": "1", "after": "3"}) {
		t.Errorf("opened again it holds %q", got)
	}
}

// FuzzEntries reads any bytes as the content of a record, which must not do more than fail.
func FuzzEntries(f *testing.F) {
	h := header{end: logAt}
	record := h.appendRecord(nil, []Entry{{"a", []byte("1")}, {"b", nil}})
	f.Add(record[recordHead:])
	f.Fuzz(func(t *testing.T, content []byte) {
		entries, ok := decodeEntries(content)
		if !ok {
			return
		}
		again, ok := decodeEntries(h.appendRecord(nil, entries)[recordHead:])
		if !ok || !reflect.DeepEqual(again, entries) {
			t.Errorf("%q is read as %q, and that as %q", content, entries, again)
		}
	})
}
