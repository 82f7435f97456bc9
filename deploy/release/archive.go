package main

import (
	"archive/tar"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// archive is the files of a tar file, which is the same whenever it is written: in the order of
// their names, with one time and one owner.
type archive struct {
	made    time.Time
	entries []entry
}

// entry is a file: its name in the archive, and the path that its content comes from when the
// archive is written.
type entry struct {
	name, from string
	mode       int64
}

// addFile adds a regular file that is not empty. Anything else is an error, since it mostly is
// a step that has failed before.
func (a *archive) addFile(name, from string, mode int64) error {
	info, err := os.Stat(from)
	if err != nil {
		return err
	}
	if !info.Mode().IsRegular() || info.Size() == 0 {
		return fmt.Errorf("%s: no file, or an empty one", from)
	}
	a.entries = append(a.entries, entry{name, from, mode})
	return nil
}

// addFolder adds the files of a folder and of those below it, of which there must be some.
// prefix comes before their paths in it.
func (a *archive) addFolder(prefix, dir string) error {
	found := false
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		found = true
		below, err := filepath.Rel(dir, path)
		if err != nil {
			return err
		}
		return a.addFile(prefix+filepath.ToSlash(below), path, 0o644)
	})
	if err == nil && !found {
		err = fmt.Errorf("%s has no files", dir)
	}
	return err
}

// write writes the tar file, compressed if its name ends in .gz. After an error a part of it
// may be there.
func (a *archive) write(path string) (err error) {
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	if !strings.HasSuffix(path, ".gz") {
		return a.writeTar(f)
	}
	z, err := gzip.NewWriterLevel(f, gzip.BestCompression)
	if err != nil {
		return err
	}
	return errors.Join(a.writeTar(z), z.Close())
}

// writeTar writes the entries, sorted.
func (a *archive) writeTar(out io.Writer) error {
	// Maps and folders are read in any order.
	slices.SortFunc(a.entries, func(x, y entry) int { return strings.Compare(x.name, y.name) })
	w := tar.NewWriter(out)
	for _, e := range a.entries {
		text, err := os.ReadFile(e.from)
		if err != nil {
			return err
		}
		h := &tar.Header{Name: e.name, Mode: e.mode, Size: int64(len(text)), ModTime: a.made, Format: tar.FormatPAX, Typeflag: tar.TypeReg}
		if err := w.WriteHeader(h); err != nil {
			return fmt.Errorf("%s: %w", e.name, err)
		}
		if _, err := w.Write(text); err != nil {
			return fmt.Errorf("%s: %w", e.name, err)
		}
	}
	return w.Close()
}

// copyFile copies a file's content.
func copyFile(from, to string) error {
	text, err := os.ReadFile(from)
	if err != nil {
		return err
	}
	return os.WriteFile(to, text, 0o644)
}
