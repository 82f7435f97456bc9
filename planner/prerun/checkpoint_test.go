package prerun

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

func TestCheckpoint(t *testing.T) {
	c := &Checkpoint{Path: filepath.Join(t.TempDir(), "state"), Every: time.Hour}
	if state, err := c.Load(); state != nil || err != nil {
		t.Fatalf("before any: %q, %v", state, err)
	}
	if c.Due() {
		t.Error("due at once, with an hour between")
	}
	for _, want := range []string{"first", "", strings.Repeat("second", 1000)} {
		if err := c.Save([]byte(want)); err != nil {
			t.Fatal(err)
		}
		if got, err := c.Load(); err != nil || !bytes.Equal(got, []byte(want)) {
			t.Fatalf("saved %d bytes, loaded %d, %v", len(want), len(got), err)
		}
	}
	files, err := os.ReadDir(filepath.Dir(c.Path))
	if err != nil || len(files) != 1 {
		t.Errorf("left %v, %v", files, err)
	}
	missing := &Checkpoint{Path: filepath.Join(t.TempDir(), "no", "state")}
	if err := missing.Save(nil); err == nil {
		t.Error("saved into a folder that does not exist")
	}
}

// TestDamagedCheckpoint cuts the file everywhere and changes every byte.
func TestDamagedCheckpoint(t *testing.T) {
	c := &Checkpoint{Path: filepath.Join(t.TempDir(), "state")}
	if err := c.Save([]byte("some state")); err != nil {
		t.Fatal(err)
	}
	whole, err := os.ReadFile(c.Path)
	if err != nil {
		t.Fatal(err)
	}
	refused := func(text []byte) bool {
		if err := os.WriteFile(c.Path, text, 0o600); err != nil {
			t.Fatal(err)
		}
		_, err := c.Load()
		return err != nil && strings.Contains(err.Error(), c.Path)
	}
	for i := range whole {
		if !refused(whole[:i]) {
			t.Errorf("cut after %d bytes it is taken", i)
		}
		changed := bytes.Clone(whole)
		changed[i] ^= 4
		if !refused(changed) {
			t.Errorf("with byte %d changed it is taken", i)
		}
	}
	if !refused(append(bytes.Clone(whole), 'x')) {
		t.Error("with a byte more it is taken")
	}
}
