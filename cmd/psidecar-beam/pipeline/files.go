package pipeline

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/apache/beam/sdks/v2/go/pkg/beam/io/filesystem"
)

// Shards returns the files that a comma-separated list of inputs stands for, in the order of
// the list and, where an input is a folder or a pattern with * or ?, of the names. The order
// counts: it is that of the samples in assignment.txt. Hidden files are left out. Files that
// are missing are an error, and so are gaps in names such as part-00003-of-00010.
func Shards(ctx context.Context, input string) ([]string, error) {
	var all []string
	for each := range strings.SplitSeq(input, ",") {
		found, err := expand(ctx, strings.TrimSpace(each))
		if err != nil {
			return nil, err
		}
		all = append(all, found...)
	}
	if err := complete(all); err != nil {
		return nil, err
	}
	return all, nil
}

// expand returns the files of one input. An object store has no folders, so a folder is a name
// below which there are files.
func expand(ctx context.Context, input string) ([]string, error) {
	if input == "" {
		return nil, errors.New("an input without a name: name files, folders or patterns, with commas between")
	}
	fs, err := filesystem.New(ctx, input)
	if err != nil {
		return nil, fmt.Errorf("opening the data: %w", err)
	}
	defer fs.Close()
	if !strings.ContainsAny(input, "*?[") {
		// A folder is what has files; a file has none.
		if found, err := list(ctx, fs, strings.TrimSuffix(input, "/")+"/*"); err != nil || len(found) > 0 {
			return found, err
		}
	}
	found, err := list(ctx, fs, input)
	if err != nil {
		return nil, err
	}
	if len(found) == 0 {
		return nil, fmt.Errorf("%s: no such shard: name libsvm files, or a directory or pattern of them", input)
	}
	return found, nil
}

// list returns the files that match a pattern, by name, without folders and hidden files. None
// is no error.
func list(ctx context.Context, fs filesystem.Interface, pattern string) ([]string, error) {
	found, err := fs.List(ctx, pattern)
	if err != nil {
		return nil, fmt.Errorf("looking for the data %s: %w", pattern, err)
	}
	found = slices.DeleteFunc(found, func(name string) bool {
		base := path.Base(name)
		return base[0] == '.' || strings.HasSuffix(name, "/") || isFolder(name)
	})
	slices.Sort(found)
	return found, nil
}

// isFolder reports whether name is a folder on this machine; object stores have none.
func isFolder(name string) bool {
	info, err := os.Stat(name)
	return err == nil && info.IsDir()
}

// numbered matches the names that writers of shards such as Beam and Spark give: prefix,
// number, number of all and suffix.
var numbered = regexp.MustCompile(`^(.*)-(\d+)-of-(\d+)(\D.*)?$`)

// complete returns an error for the first gap among files whose names say how many there are. A
// shard that was not copied would otherwise make a partition of less data without a sign of it.
// Files of several such sets are checked each on its own.
func complete(files []string) error {
	type set struct{ prefix, of, suffix string }
	has := map[set]map[int]bool{}
	var order []set
	for _, name := range files {
		m := numbered.FindStringSubmatch(name)
		if m == nil {
			continue
		}
		s := set{m[1], m[3], m[4]}
		if has[s] == nil {
			has[s] = map[int]bool{}
			order = append(order, s)
		}
		n, err := strconv.Atoi(m[2])
		if err != nil {
			return fmt.Errorf("%s: its number is beyond all sense", name)
		}
		has[s][n] = true
	}
	for _, s := range order {
		want, err := strconv.Atoi(s.of)
		// The bound keeps the loop below short whatever a name says.
		if err != nil || want > 1<<24 {
			return fmt.Errorf("%s-...-of-%s%s: its number is beyond all sense", s.prefix, s.of, s.suffix)
		}
		for n := range want {
			if !has[s][n] {
				return fmt.Errorf("shard %s-%0*d-of-%s%s is missing: found %d of %d", s.prefix, len(s.of), n, s.of, s.suffix, len(has[s]), want)
			}
		}
	}
	return nil
}

// readFile opens a file, of any file system that Beam knows, and calls read with it.
func readFile(ctx context.Context, name string, read func(io.Reader) error) error {
	fs, err := filesystem.New(ctx, name)
	if err != nil {
		return fmt.Errorf("opening %s: %w", name, err)
	}
	defer fs.Close()
	r, err := fs.OpenRead(ctx, name)
	if err != nil {
		return fmt.Errorf("opening %s: %w", name, err)
	}
	defer r.Close()
	return read(r)
}

// writeFile creates or replaces a file with what write writes. After an error a part of it may
// be there: not all of these file systems can rename.
func writeFile(ctx context.Context, name string, write func(io.Writer) error) error {
	fs, err := filesystem.New(ctx, name)
	if err != nil {
		return fmt.Errorf("writing %s: %w", name, err)
	}
	defer fs.Close()
	w, err := fs.OpenWrite(ctx, name)
	if err != nil {
		return fmt.Errorf("writing %s: %w", name, err)
	}
	err = write(w)
	if err := errors.Join(err, w.Close()); err != nil {
		return fmt.Errorf("writing %s: %w", name, err)
	}
	return nil
}

// removeFile removes a file. On a file system that cannot it does nothing.
func removeFile(ctx context.Context, name string) error {
	fs, err := filesystem.New(ctx, name)
	if err != nil {
		return err
	}
	defer fs.Close()
	if r, ok := fs.(filesystem.Remover); ok {
		return r.Remove(ctx, name)
	}
	return nil
}

// join joins with a slash. Package path would clean the two slashes out of gs://.
func join(folder, name string) string { return strings.TrimSuffix(folder, "/") + "/" + name }
