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
	if err != nil {
		t.Fatal(err)
	}
	return all
}

func TestStores(t *testing.T) {
	path := filepath.Join(t.TempDir(), "new", "plans.db")
	file, err := OpenFile(path)
	if err != nil {
		t.Fatal(err)
	}
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
	if err := file.Close(); err != nil {
		t.Fatal(err)
	}
	if err := file.Write(t.Context(), []Entry{{"f", []byte("6")}}); !errors.Is(err, ErrUnavailable) {
		t.Errorf("writing a closed store gives %v", err)
	}
	again, err := OpenFile(path)
	if err != nil {
		t.Fatal(err)
	}
	defer again.Close()
	if got := contents(t, again); len(got) != 2 || got["b"] != "3" {
		t.Errorf("opened again it holds %q", got)
	}
}

func TestNotAStore(t *testing.T) {
	path := filepath.Join(t.TempDir(), "plans.db")
	if err := os.WriteFile(path, []byte(strings.Repeat("no store ", 4096)), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := OpenFile(path); err == nil || !strings.Contains(err.Error(), "move it away") {
		t.Errorf("opening something else gives %v", err)
	}
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
		out, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		said := -1
		for limit := 20 + 7*round; said < limit; {
			if _, err := fmt.Fscan(out, &said); err != nil {
				t.Fatalf("round %d, after %d: %v", round, said, err)
			}
		}
		if err := cmd.Process.Kill(); err != nil {
			t.Fatal(err)
		}
		_ = cmd.Wait() // it was killed
		s, err := OpenFile(path)
		if err != nil {
			t.Fatal(err)
		}
		all := contents(t, s)
		for i := range said + 1 {
			if want := fmt.Sprint(i); all["one/"+want] != want || all["two/"+want] != want {
				t.Errorf("round %d: entries %d are %q and %q", round, i, all["one/"+want], all["two/"+want])
			}
		}
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
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
	end := time.Now().Add(time.Minute)
	for i := 0; time.Now().Before(end); i++ {
		v := []byte(fmt.Sprint(i))
		if err := s.Write(context.Background(), []Entry{{"one/" + string(v), v}, {"two/" + string(v), v}}); err != nil {
			return err
		}
		fmt.Println(i)
	}
	return s.Close()
}
