package jobs

import (
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/psidecar/psidecar/proxy/ledger"
)

// folder is the state folder:
//
//	boot                  the host's boot in which the rest was written; its time is when a proxy
//	                      ran last
//	reserve               room for the end, see reserve
//	DIGEST.run            a scheduler of this host, see scheduler
//	DIGEST/job.json       a job, see saved; job-copy.json is its copy
//	DIGEST/worker-ID      a worker's ledger (package ledger)
//	DIGEST/owners         the owners of keys, see journal
//	DIGEST/unfinished.json  left by an orderly end, see unfinished
//	DIGEST/answered       left by an orderly end, see answeredFile
//	DIGEST/asked          see askedFile
//	.damaged-*            folders that were found damaged; in a job's folder, files
//
// What is damaged is renamed, so that somebody can look at it and nothing reads it as if it were
// good.
type folder struct {
	dir   string
	log   *slog.Logger
	space ledger.Space // of ledgers; bounds them together

	damaged atomic.Uint64 // files and folders found damaged
	ran     time.Time     // what ranUntil noted last; only Jobs.Run calls it
	empty   atomic.Bool   // there were no jobs, and there have been none since

	mu   sync.Mutex // guards lost
	lost []lostJob
}

// lostJob is a job of which both job.json and its copy are damaged, so that not even its name is
// known. Its keys may be displaced, so workers' connections to servers of unknown jobs fail as long
// as its folder exists.
type lostJob struct {
	path string
	err  error
}

const (
	aside = ".damaged-"
	// maxAside bounds the folders that are kept aside.
	maxAside = 16
	bootFile = "boot"
	// reserve is the size in bytes of a file that only takes up room. A proxy that ends removes it
	// where the disk is full, to have room for what it must leave to the next one.
	reserve     = 128 << 10
	reserveFile = "reserve"
	bootID      = "/proc/sys/kernel/random/boot_id"
	// defaultLimit bounds the bytes of all ledgers.
	defaultLimit = 256 << 20
)

// openFolder opens the state folder, and makes it if needed. It removes what is of no use any more:
// files of before the host's boot, and old ones.
func openFolder(dir string, limit int64, log *slog.Logger) (*folder, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("creating the jobs directory: %w", err)
	}
	if limit == 0 {
		limit = defaultLimit
	}
	f := &folder{dir: dir, log: log, space: ledger.Space{Limit: limit}}
	f.clearAfterBoot()
	if err := f.tidy(); err != nil {
		return nil, err
	}
	f.keepReserve()
	return f, nil
}

// keepReserve writes the reserve, if there is room.
func (f *folder) keepReserve() {
	name := filepath.Join(f.dir, reserveFile)
	if info, err := os.Stat(name); err == nil && info.Size() == reserve {
		return
	}
	if err := os.WriteFile(name, make([]byte, reserve), 0o600); err != nil {
		f.log.Debug("reserving space in the state directory", "folder", f.dir, "error", err)
		os.Remove(name)
	}
}

// giveReserve removes the reserve.
func (f *folder) giveReserve() error { return os.Remove(filepath.Join(f.dir, reserveFile)) }

// Left reports whether a proxy before this one has left, in a state folder, a job whose keys may be
// displaced. Its requests have to be routed or refused, whatever this proxy is started for. A folder
// that does not exist has none.
func Left(dir string) bool {
	f := folder{dir: dir}
	paths, err := f.jobs()
	if err != nil || f.rebooted() {
		return false
	}
	for _, path := range paths {
		info, err := os.Stat(path)
		if err != nil || f.isOld(path, info) {
			continue
		}
		s, _, err := readSaved(filepath.Join(path, jobFile))
		if err != nil {
			s, _, err = readSaved(filepath.Join(path, jobCopy))
		}
		// Of a damaged one nobody knows.
		if s.Displaced || err != nil && !errors.Is(err, fs.ErrNotExist) {
			return true
		}
	}
	return false
}

// rebooted reports whether it is certain that the host has booted since the folder was written. Only
// a good file that names another boot says so. Without one, as after an upgrade from a version that
// wrote none, the files' age decides in tidy.
func (f *folder) rebooted() bool {
	now, err := os.ReadFile(bootID)
	if err != nil {
		return false
	}
	before, err := os.ReadFile(filepath.Join(f.dir, bootFile))
	return err == nil && len(before) == len(now) && string(before) != string(now)
}

// clearAfterBoot removes jobs' folders from before the host's boot: the processes of those jobs
// ended with it.
func (f *folder) clearAfterBoot() {
	now, err := os.ReadFile(bootID)
	if err != nil {
		return // then tidy judges by age
	}
	name := filepath.Join(f.dir, bootFile)
	before, err := os.ReadFile(name)
	// The same boot: a proxy that was killed or replaced left these files, and they are needed.
	if err == nil && string(before) == string(now) {
		return
	}
	if f.rebooted() {
		entries, err := os.ReadDir(f.dir)
		for _, e := range entries {
			if e.IsDir() {
				err = errors.Join(err, os.RemoveAll(filepath.Join(f.dir, e.Name())))
			}
		}
		if err != nil {
			f.log.Warn("removing state from before the reboot", "folder", f.dir, "error", err)
			return
		}
	}
	if err := os.WriteFile(name, now, 0o600); err != nil {
		f.log.Debug("saving the boot time", "folder", f.dir, "error", err)
	}
}

// tidy removes folders that nothing has touched for forgetAfter, and the oldest of those set aside
// beyond maxAside. The others that are set aside become lost jobs.
func (f *folder) tidy() error {
	entries, err := os.ReadDir(f.dir)
	if err != nil {
		return fmt.Errorf("looking for jobs: %w", err)
	}
	type old struct {
		path string
		when time.Time
	}
	var set []old
	for _, e := range entries {
		info, err := e.Info()
		path := filepath.Join(f.dir, e.Name())
		switch {
		case err != nil || !e.IsDir():
			continue
		case strings.HasPrefix(e.Name(), ".") && !strings.HasPrefix(e.Name(), aside):
			continue // not a job's
		case f.isOld(path, info):
			f.removePath(path)
		// The error that was found is in the log of the proxy that found it; here only the fact is
		// left.
		case strings.HasPrefix(e.Name(), aside):
			set = append(set, old{path, info.ModTime()})
		}
	}
	slices.SortFunc(set, func(a, b old) int { return b.when.Compare(a.when) })
	for i, s := range set {
		if i >= maxAside {
			f.removePath(s.path)
			continue
		}
		f.lost = append(f.lost, lostJob{s.path, errors.New("it was found damaged by a proxy before this one")})
	}
	return nil
}

// removePath removes a folder, and logs a failure.
func (f *folder) removePath(path string) {
	if err := os.RemoveAll(path); err != nil {
		f.log.Warn("removing the state of an old job", "folder", path, "error", err)
	}
}

// isOld reports whether nothing has touched a job's folder for forgetAfter. Only time in which a
// proxy ran counts: without one nothing is touched, however long that lasts, and jobs wait for it.
func (f *folder) isOld(path string, info fs.FileInfo) bool {
	ran := time.Now()
	if boot, err := os.Stat(filepath.Join(f.dir, bootFile)); err == nil {
		ran = boot.ModTime()
	}
	return ran.Sub(lastTouched(path, info)) > forgetAfter
}

// ranUntil notes that a proxy still runs.
func (f *folder) ranUntil(now time.Time) {
	if now.Sub(f.ran).Abs() < forgetAfter/24 {
		return
	}
	f.ran = now
	if err := os.Chtimes(filepath.Join(f.dir, bootFile), now, now); err != nil {
		f.log.Debug("noting that the proxy runs", "folder", f.dir, "error", err)
	}
}

// lastTouched returns when a job's folder, or its job.json, was last written. The latter is touched
// while the job is used.
func lastTouched(path string, info fs.FileInfo) time.Time {
	if job, err := os.Stat(filepath.Join(path, jobFile)); err == nil && job.ModTime().After(info.ModTime()) {
		return job.ModTime()
	}
	return info.ModTime()
}

// jobs returns the paths of the jobs' folders.
func (f *folder) jobs() (all []string, err error) {
	entries, err := os.ReadDir(f.dir)
	if err != nil {
		return nil, fmt.Errorf("looking for jobs: %w", err)
	}
	for _, e := range entries {
		if e.IsDir() && !strings.HasPrefix(e.Name(), ".") {
			all = append(all, filepath.Join(f.dir, e.Name()))
		}
	}
	return all, nil
}

// pathsLike returns the paths of what a folder has under names that match a pattern. To
// [filepath.Glob] the folder's own name would be part of the pattern, and one that cannot be read
// would look empty.
func pathsLike(dir, pattern string) (paths []string, err error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	for _, e := range entries {
		like, err := filepath.Match(pattern, e.Name())
		if err != nil {
			return nil, err
		}
		if like {
			paths = append(paths, filepath.Join(dir, e.Name()))
		}
	}
	return paths, nil
}

// lose sets aside the folder of a job whose name is not known.
func (f *folder) lose(path string, err error) {
	f.damaged.Add(1)
	to := filepath.Join(f.dir, fmt.Sprintf("%s%s-%d", aside, filepath.Base(path), time.Now().UnixNano()))
	if moved := os.Rename(path, to); moved != nil {
		f.log.Warn("setting a damaged directory aside", "folder", path, "error", moved)
		to = path
	}
	f.log.Error("the state of a job is damaged: workers' connections to servers of unknown jobs fail, because their keys may be displaced; stop that job and remove the directory", "folder", to, "error", err)
	f.mu.Lock()
	defer f.mu.Unlock()
	f.lost = append(f.lost, lostJob{to, err})
}

// missJobs notes that there must have been jobs whose folders are not there.
func (f *folder) missJobs(why error) {
	if !f.empty.CompareAndSwap(true, false) {
		return
	}
	path := filepath.Join(f.dir, aside+"missing")
	f.damaged.Add(1)
	if err := os.MkdirAll(path, 0o700); err != nil {
		f.log.Warn("noting that jobs are missing", "folder", path, "error", err)
	}
	f.log.Error("the state of jobs is missing: workers' connections to servers of unknown jobs fail, because their keys may be displaced; restart those jobs and remove the directory", "folder", path, "error", why)
	f.mu.Lock()
	defer f.mu.Unlock()
	f.lost = append(f.lost, lostJob{path, why})
}

// setAside moves a damaged file of a job out of the way, replacing one that was set aside before.
func (f *folder) setAside(path string) {
	f.damaged.Add(1)
	to := filepath.Join(filepath.Dir(path), aside+filepath.Base(path))
	if err := os.Rename(path, to); err != nil && !errors.Is(err, fs.ErrNotExist) {
		f.log.Warn("setting a damaged file aside", "file", path, "error", err)
	}
}

// missing returns the lost jobs. Removing the folder of one is how an operator says that the job is
// over.
func (f *folder) missing() []lostJob {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.lost = slices.DeleteFunc(f.lost, func(l lostJob) bool {
		_, err := os.Stat(l.path)
		return errors.Is(err, fs.ErrNotExist)
	})
	return slices.Clone(f.lost)
}
