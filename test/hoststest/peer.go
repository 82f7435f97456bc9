package hoststest

import (
	"bufio"
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/psidecar/psidecar/test/require"
)

//go:embed src
var sources embed.FS

// PeerWorker is what a worker prints at its end, one line of JSON.
type PeerWorker struct {
	Role   string `json:"role"`
	Rank   int    `json:"rank"`
	Mode   string `json:"mode"`
	Keys   int    `json:"keys"`   // it pushed and pulled each time
	Values int    `json:"values"` // of those keys
	Pushes int    `json:"pushes"` // push requests, PushPull ones among them
	Pulls  int    `json:"pulls"`  // pull requests, PushPull ones among them
	Wrong  int    `json:"wrong"`  // values that were not what they must be

	PushSeconds []float64 `json:"push_seconds"` // from a push to its last answer
	PullSeconds []float64 `json:"pull_seconds"`
}

// PeerServer is what a server prints at its end, one line of JSON. Requests of a
// worker count once at each server that they reach.
type PeerServer struct {
	Role         string  `json:"role"`
	Rank         int     `json:"rank"`
	Pushes       int     `json:"pushes"`
	Pulls        int     `json:"pulls"`
	KeysPushed   int     `json:"keys_pushed"`
	KeysPulled   int     `json:"keys_pulled"`
	ValuesPushed int     `json:"values_pushed"`
	ValuesPulled int     `json:"values_pulled"`
	Keys         int     `json:"keys"` // that it holds
	Sum          float64 `json:"sum"`  // of all values that it holds
}

// PeerAccess is how a worker used a key.
type PeerAccess struct {
	Pushes, PushBytes, Pulls, PullBytes uint64
}

// BuildPeer returns the path of the peer's program. It is built once and kept in
// the user's cache under a name made from its sources. Without a compiler the
// test is skipped, or fails where everything is required.
func BuildPeer(t testing.TB) string {
	t.Helper()
	make, _ := require.Program(t, "make"), require.Program(t, "g++")
	require.Program(t, "protoc")
	for _, header := range []string{"zmq.h", "google/protobuf/message.h"} {
		needHeader(t, header)
	}
	name, err := sourcesName()
	if err != nil {
		t.Fatalf("reading the peer's sources: %v", err)
	}
	cache, err := os.UserCacheDir()
	if err != nil {
		cache = t.TempDir() // no home: build it for this test alone
	}
	dir := filepath.Join(cache, "psidecar", name)
	path := filepath.Join(dir, "peer")
	if _, err := os.Stat(path); err == nil {
		return path
	}
	if err := build(make, dir); err != nil {
		t.Fatalf("building the peer: %v", err)
	}
	return path
}

// needHeader needs a C++ header to be where the compiler finds it.
func needHeader(t testing.TB, name string) {
	t.Helper()
	cmd := exec.Command("g++", "-x", "c++", "-E", "-")
	cmd.Stdin = strings.NewReader("#include <" + name + ">\n")
	if err := cmd.Run(); err != nil {
		require.Missing(t, "needs the C++ header %s: apt-get install libzmq3-dev libprotobuf-dev", name)
	}
}

func sourcesName() (string, error) {
	sum := sha256.New()
	err := fs.WalkDir(sources, "src", func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		text, err := sources.ReadFile(path)
		fmt.Fprintf(sum, "%s %d\n%s", path, len(text), text)
		return err
	})
	return "peer-" + hex.EncodeToString(sum.Sum(nil)[:8]), err
}

// build builds in a folder of its own and renames it, so that a half-built
// peer is never found, by whomever it is built at the same time.
func build(make, dir string) error {
	if err := os.MkdirAll(filepath.Dir(dir), 0o755); err != nil {
		return err
	}
	work, err := os.MkdirTemp(filepath.Dir(dir), "build-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(work)
	if err := os.CopyFS(work, sources); err != nil {
		return err
	}
	src := filepath.Join(work, "src")
	out, err := exec.Command(make, "-j2", "-C", src, "OUT=.").CombinedOutput()
	if err != nil {
		return fmt.Errorf("make: %w\n%s", err, out)
	}
	err = os.Rename(src, dir)
	if _, there := os.Stat(filepath.Join(dir, "peer")); there == nil {
		return nil // by us, or by another who was faster
	}
	return err
}

// ReadAccess reads the file that a worker writes for --access, or psjob's for --access-log.
func ReadAccess(path string) (map[uint64]PeerAccess, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("reading a peer's accesses: %w", err)
	}
	defer f.Close()
	keys := make(map[uint64]PeerAccess)
	lines := bufio.NewScanner(f)
	for n := 1; lines.Scan(); n++ {
		if strings.HasPrefix(lines.Text(), "#") {
			continue
		}
		var key uint64
		var a PeerAccess
		if _, err := fmt.Sscan(lines.Text(), &key, &a.Pushes, &a.PushBytes, &a.Pulls, &a.PullBytes); err != nil {
			return nil, fmt.Errorf("reading a peer's accesses: %s line %d: %w", path, n, err)
		}
		keys[key] = a
	}
	if err := lines.Err(); err != nil {
		return nil, fmt.Errorf("reading a peer's accesses: %s: %w", path, err)
	}
	return keys, nil
}
