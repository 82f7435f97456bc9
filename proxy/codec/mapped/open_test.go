package mapped

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
)

// A file that another process has taken over and removed, after it was opened here, is
// not there: its residuals would be added twice.
func TestRemovedFileIsNotThere(t *testing.T) {
	path := filepath.Join(t.TempDir(), "left")
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if err := linked(f); err != nil {
		t.Errorf("a file that is there: %v", err)
	}
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	if err := linked(f); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a file that was removed: %v, want %v", err, os.ErrNotExist)
	}
}
