package main

import (
	"bytes"
	"encoding/csv"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/psidecar/psidecar/client"
	"github.com/psidecar/psidecar/internal/control"
	"github.com/psidecar/psidecar/page"
	"github.com/psidecar/psidecar/planner"
	"github.com/psidecar/psidecar/proxy"
)

// namesFile writes a file of names.
func namesFile(t *testing.T, name, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// lockedBuffer is a buffer to which several goroutines write.
type lockedBuffer struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (b *lockedBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.Write(p)
}

func (b *lockedBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.String()
}

// Names of keys that are set at a running planner are what it shows from then on,
// and the log says who set them; what it tells as CSV can be set again.
func TestNamesSetAndShow(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "names.sock")
	c, _ := startPlanner(t, plannerFlags{Settings: planner.Settings{HTTP: "127.0.0.1:0", NamesSocket: socket, KeyNames: namesFile(t, "names.yaml", "- {name: first, first: 0, last: 9}")}})
	address := c.opts.Front.Listener.Addr().String()
	awaitControl(t, socket)
	show := func(args ...string) string {
		t.Helper()
		code, out, stderr := runTest(t, nil, append([]string{"names", "show", "--log-level", "error", "--agent", address}, args...)...)
		if code != 0 {
			t.Fatalf("names show %q: exit code %d, %s", args, code, stderr)
		}
		return out
	}
	if out := show(); !strings.Contains(out, "\nfirst") {
		t.Errorf("before: %s", out)
	}
	set := namesFile(t, "set.yaml", "- {name: users, first: 0, last: 1599, keys-per-row: 16}\n- {name: theirs, first: 0, last: 9, job: 'h:1'}\n")
	code, out, stderr := setIn(t, set, "--control-socket", socket)
	if code != 0 || !strings.Contains(out, "ranges of keys with names: 2, until the file of --names changes or the process ends") {
		t.Fatalf("names set: exit code %d, %q, %s", code, out, stderr)
	}
	if out := show(); !strings.Contains(out, "users   0      1599  16") || strings.Contains(out, "\nfirst") {
		t.Errorf("after: %s", out)
	}
	if out := show("--job", "other:1"); strings.Contains(out, "theirs") {
		t.Errorf("of another job: %s", out)
	}
	again := show("--csv")
	rows, err := csv.NewReader(strings.NewReader(again)).ReadAll()
	if err != nil || len(rows) != 3 {
		t.Fatalf("--csv: %q, %v", again, err)
	}
	code, out, stderr = setIn(t, namesFile(t, "again.csv", again), "--control-socket", socket)
	if code != 0 || show("--csv") != again {
		t.Errorf("what is shown cannot be set: exit code %d, %q, %s", code, out, stderr)
	}
	code, _, _ = setIn(t, namesFile(t, "none.yaml", ""), "--control-socket", socket)
	if out := show(); code != 0 || !strings.Contains(out, "no key names") {
		t.Errorf("taken away: exit code %d, %q", code, out)
	}
}

// setIn sets the names of a file. The planner in this process, whose log goes where
// the command's does, says nothing meanwhile.
func setIn(t *testing.T, file string, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	return runTest(t, nil, append([]string{"names", "set", "--log-level", "error", file}, args...)...)
}

// awaitControl waits until something answers at a control socket.
func awaitControl(t *testing.T, socket string) {
	t.Helper()
	for tries := 0; ; tries++ {
		response, err := control.Client(socket).Get("http://control/api/v1/names")
		if err == nil {
			response.Body.Close()
			return
		}
		if tries == 3000 {
			t.Fatalf("nobody answers at %s: %v", socket, err)
		}
		time.Sleep(10 * time.Millisecond)
	}
}

// The log of who has names says who set them.
func TestNamesAreSetBySomebody(t *testing.T) {
	log := &lockedBuffer{}
	before := slog.Default()
	slog.SetDefault(slog.New(slog.NewTextHandler(log, nil)))
	t.Cleanup(func() { slog.SetDefault(before) })
	called, err := page.OpenNames("")
	if err != nil {
		t.Fatal(err)
	}
	socket := filepath.Join(t.TempDir(), "names.sock")
	serveControl(t, socket, control.NewServer(page.NamesControl(called), nil))
	var out bytes.Buffer
	if err := client.SetNames(t.Context(), &out, []string{socket}, false, "", []byte("- {name: a, first: 0, last: 9}")); err != nil || !strings.Contains(out.String(), "with names: 1,") {
		t.Fatal(out.String(), err)
	}
	want := fmt.Sprintf("msg=change by=\"user %d at the control socket\" method=PUT path=/api/v1/names status=200", os.Geteuid())
	if text := log.String(); !strings.Contains(text, want) {
		t.Errorf("want %s in the log: %s", want, text)
	}
}

// What cannot be set is said, and nothing is set.
func TestNamesThatCannotBeSet(t *testing.T) {
	nobody := filepath.Join(t.TempDir(), "names.sock")
	good := namesFile(t, "good.yaml", "- {name: a, first: 0, last: 9}")
	for _, c := range []struct {
		args []string
		code int
		want string
	}{
		{[]string{"names", "set"}, 2, "accepts 1 arg"},
		{[]string{"names", "set", namesFile(t, "bad.yaml", "- {name: a, first: 3, last: 2}"), "--control-socket", nobody}, 2, "below the first"},
		{[]string{"names", "set", good + ".not"}, 1, "no such file"},
		{[]string{"names", "set", good, "--control-socket", nobody}, 1, nobody},
	} {
		if code, _, stderr := runTest(t, nil, c.args...); code != c.code || !strings.Contains(stderr, c.want) {
			t.Errorf("%q: exit code %d, %q; want %d, %q", c.args, code, stderr, c.code, c.want)
		}
	}
}

// Where psidecar looks itself, sockets that nobody serves and those of proxies,
// which know no names, are passed over; where none is left that is said.
func TestNamesAtUsualSockets(t *testing.T) {
	dir := t.TempDir()
	p, err := proxy.New(proxy.Options{})
	if err != nil {
		t.Fatal(err)
	}
	called, err := page.OpenNames("")
	if err != nil {
		t.Fatal(err)
	}
	alone, all := filepath.Join(dir, "alone.sock"), filepath.Join(dir, "all.sock")
	serveControl(t, alone, (&proxyFlags{}).orders(p, nil))
	serveControl(t, all, (&proxyFlags{}).orders(p, called))
	text := []byte("- {name: a, first: 0, last: 9}")
	var out bytes.Buffer
	if err := client.SetNames(t.Context(), &out, []string{filepath.Join(dir, "none"), alone}, true, "", text); err == nil || !strings.Contains(err.Error(), "is one running?") {
		t.Errorf("at a proxy alone: %v", err)
	}
	err = client.SetNames(t.Context(), &out, []string{filepath.Join(dir, "none"), alone, all}, true, "", text)
	if err != nil || called.Map().Key("", 3) != "a+3" || strings.Count(out.String(), "ranges of keys with names: 1,") != 1 {
		t.Errorf("%v, key 3 is %q, %q", err, called.Map().Key("", 3), out.String())
	}
	// The proxy's own orders are taken beside names.
	response, err := control.Client(all).Get("http://control/api/v1/codecs")
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	if response.StatusCode == http.StatusMethodNotAllowed {
		t.Errorf("codecs: %s", response.Status)
	}
}

// serveControl serves orders at a socket until the test ends.
func serveControl(t *testing.T, socket string, orders *control.Server) {
	t.Helper()
	l, err := control.Listen(socket)
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- orders.Serve(t.Context(), l) }()
	t.Cleanup(func() {
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
}
