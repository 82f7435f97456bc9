package mapped

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/psidecar/psidecar/test/require"
)

// A file that another process has taken over and removed, after it was opened here, is
// not there: its residuals would be added twice.
func TestRemovedFileIsNotThere(t *testing.T) {
	path := filepath.Join(t.TempDir(), "left")
	f := require.Value(os.Create(path))(t)
	defer f.Close()
	if err := linked(f); err != nil {
		t.Errorf("a file that is there: %v", err)
	}
	require.NoError(t, os.Remove(path))
	if err := linked(f); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a file that was removed: %v, want %v", err, os.ErrNotExist)
	}
}

// A file that was taken over and cannot be removed is not taken over again.
func TestFileThatCannotBeRemovedIsMarked(t *testing.T) {
	path := filepath.Join(t.TempDir(), "left")
	f, err := Create(path, Options{})
	if err == nil {
		err = f.Close()
	}
	require.NoError(t, err)
	l := require.Value(Open(path))(t)
	// Another file is under its name for a while.
	require.NoError(t, errors.Join(os.Rename(path, path+".aside"), os.MkdirAll(filepath.Join(path, "not empty"), 0o700)))
	if err := l.Remove(); err == nil {
		t.Error("it was removed")
	}
	require.NoError(t, errors.Join(os.RemoveAll(path), os.Rename(path+".aside", path)))
	if _, err := Open(path); !errors.Is(err, ErrTaken) {
		t.Errorf("it is opened again with %v, want %v", err, ErrTaken)
	}
}
