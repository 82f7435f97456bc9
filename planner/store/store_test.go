package store

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/psidecar/psidecar/test/require"
)

func contents(t *testing.T, s Store) map[string]string {
	t.Helper()
	all, last := map[string]string{}, ""
	err := s.Each(t.Context(), func(name string, value []byte) error {
		if name <= last && last != "" {
			t.Errorf("%q comes after %q", name, last)
		}
		all[name], last = string(value), name
		return nil
	})
	require.NoError(t, err)
	return all
}

func TestStores(t *testing.T) {
	path := filepath.Join(t.TempDir(), "new", "plans.db")
	file := require.Value(OpenFile(path))(t)
	for name, s := range map[string]Store{"memory": &Memory{}, "file": file} {
		t.Run(name, func(t *testing.T) {
			for i, entries := range [][]Entry{
				{{"b", []byte("1")}, {"a", []byte("2")}, {"b", []byte("3")}},
				{{"c", []byte{}}, {"a", nil}, {"never there", nil}},
			} {
				if err := s.Write(t.Context(), entries); err != nil {
					t.Fatalf("write %d: %v", i, err)
				}
			}
			if got, want := contents(t, s), map[string]string{"b": "3", "c": ""}; !maps.Equal(got, want) {
				t.Errorf("it holds %q, want %q", got, want)
			}
			for _, bad := range []Entry{{"", nil}, {strings.Repeat("n", MaxName+1), nil}, {"a\x00", nil}, {"a", make([]byte, MaxValue+1)}} {
				if err := s.Write(t.Context(), []Entry{{"d", []byte("4")}, bad}); err == nil {
					t.Errorf("it took %.20q", bad.Name)
				}
			}
			if _, there := contents(t, s)["d"]; there {
				t.Error("entries beside a bad one were written")
			}
			ended := errors.New("enough")
			if err := s.Each(t.Context(), func(string, []byte) error { return ended }); !errors.Is(err, ended) {
				t.Errorf("an error of each gives %v", err)
			}
			canceled, cancel := context.WithCancel(t.Context())
			cancel()
			if err := s.Write(canceled, []Entry{{"e", []byte("5")}}); !errors.Is(err, context.Canceled) {
				t.Errorf("a write for nobody gives %v", err)
			}
		})
	}
	require.NoError(t, file.Close())
	if err := file.Write(t.Context(), []Entry{{"f", []byte("6")}}); !errors.Is(err, ErrUnavailable) {
		t.Errorf("writing a closed store gives %v", err)
	}
	again := require.Value(OpenFile(path))(t)
	defer again.Close()
	if got := contents(t, again); len(got) != 2 || got["b"] != "3" {
		t.Errorf("opened again it holds %q", got)
	}
}

func TestLocked(t *testing.T) {
	t.Parallel() // it waits for the lock
	path := filepath.Join(t.TempDir(), "plans.db")
	s := openFile(t, path)
	if _, err := OpenFile(path); err == nil || !strings.Contains(err.Error(), "open in another process") {
		t.Errorf("opening it twice gives %v", err)
	}
	require.NoError(t, s.Close())
	openFile(t, path)
	if _, err := OpenFile("/dev/null/plans.db"); err == nil {
		t.Error("a folder that cannot be made")
	}
}

// TestKilledWriterLosesNothingItSaid writes in another process, which is killed again and again. What
// it said was written is there.
func TestKilledWriterLosesNothingItSaid(t *testing.T) {
	path := filepath.Join(t.TempDir(), "plans.db")
	for round := range 5 {
		cmd := exec.CommandContext(t.Context(), os.Args[0])
		cmd.Env = append(os.Environ(), writeTo+"="+path)
		out := require.Value(cmd.StdoutPipe())(t)
		require.NoError(t, cmd.Start())
		said := -1
		for limit := 20 + 7*round; said < limit; {
			if _, err := fmt.Fscan(out, &said); err != nil {
				t.Fatalf("round %d, after %d: %v", round, said, err)
			}
		}
		require.NoError(t, cmd.Process.Kill())
		_ = cmd.Wait() // it was killed
		s := require.Value(OpenFile(path))(t)
		all := contents(t, s)
		for i := range said + 1 {
			if want := fmt.Sprint(i); all["one/"+want] != want || all["two/"+want] != want {
				t.Errorf("round %d: entries %d are %q and %q", round, i, all["one/"+want], all["two/"+want])
			}
		}
		require.NoError(t, s.Close())
	}
}

// writeTo names the environment variable that makes this test program the
// other process of TestKilledWriterLosesNothingItSaid, and the file.
const writeTo = "PSIDECAR_TEST_WRITE_STORE"

func TestMain(m *testing.M) {
	path := os.Getenv(writeTo)
	if path == "" {
		os.Exit(m.Run())
	}
	if err := writeUntilKilled(path); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func writeUntilKilled(path string) error {
	s, err := OpenFile(path)
	if err != nil {
		return err
	}
	large := make([]byte, MaxValue) // so that the file is rewritten now and then
	end := time.Now().Add(time.Minute)
	for i := 0; time.Now().Before(end); i++ {
		v := []byte(fmt.Sprint(i))
		if err := s.Write(context.Background(), []Entry{{"one/" + string(v), v}, {"large", large}, {"two/" + string(v), v}}); err != nil {
			return err
		}
		fmt.Println(i)
	}
	return s.Close()
}
