package spare

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"

	"github.com/psidecar/psidecar/proxy/codec/mapped"
)

// lockSuffix is the suffix of the file that is locked while a process has a store. The store's
// own file is locked too, but is replaced when the next process takes it up, and may not exist yet.
const lockSuffix = ".lock"

// lockStore locks a store's path for this process. The lock ends with the file's Close, or the
// process.
func lockStore(path string) (*os.File, error) {
	for {
		f, err := os.OpenFile(path+lockSuffix, os.O_RDWR|os.O_CREATE, 0o600)
		if err != nil {
			return nil, err
		}
		if err = unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); errors.Is(err, unix.EWOULDBLOCK) {
			err = fmt.Errorf("%s: %w", path, mapped.ErrInUse)
		}
		var s unix.Stat_t
		if err == nil {
			err = unix.Fstat(int(f.Fd()), &s)
		}
		if err != nil {
			return nil, errors.Join(err, f.Close())
		}
		// Between our opening and locking it another process may have removed it.
		if s.Nlink > 0 {
			return f, nil
		}
		if err := f.Close(); err != nil {
			return nil, err
		}
	}
}

// RemoveStore removes a store that no process has: one that OpenStore cannot take up, as it is
// damaged or of another boot.
func RemoveStore(path string) error {
	lock, err := lockStore(path)
	if err != nil {
		return err
	}
	return errors.Join(removeFiles(path), os.Remove(path+lockSuffix), lock.Close())
}

// removeFiles removes a store's file, if there is one, and what an OpenStore left that was killed.
func removeFiles(path string) error {
	return errors.Join(removeUnfinished(path), removeAny(path))
}

func removeUnfinished(path string) error {
	return errors.Join(removeAny(path+nextSuffix), removeAny(path+nextSuffix+mapped.Unfinished))
}

func removeAny(path string) error {
	if err := os.Remove(path); !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return nil
}
