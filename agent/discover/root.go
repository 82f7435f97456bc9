package discover

import (
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// openInRoot opens the regular file at name below root, the root directory of
// another process, for reading.
//
// openat2 keeps the lookup below that root and off the links of its /proc, which
// would lead anywhere. Mounts may be crossed: a pod's /etc/hosts is one. The first
// open only names the file (O_PATH): to open a device or a FIFO can have effects or
// wait. A name is opened with O_PATH and examined before it is opened for reading.
func openInRoot(root, name string, most int) (*os.File, error) {
	dir, err := unix.Open(root, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, &os.PathError{Op: "open", Path: root, Err: err}
	}
	defer unix.Close(dir)
	file, err := unix.Openat2(dir, name, &unix.OpenHow{
		Flags:   unix.O_PATH | unix.O_CLOEXEC,
		Resolve: unix.RESOLVE_IN_ROOT | unix.RESOLVE_NO_MAGICLINKS,
	})
	if err != nil {
		return nil, &os.PathError{Op: "openat2", Path: root + "/" + name, Err: err}
	}
	defer unix.Close(file)
	if err := plain(file, most); err != nil {
		return nil, fmt.Errorf("%s/%s: %w", root, name, err)
	}
	// Without O_NONBLOCK it would wait for a lease that its owner holds.
	f, err := os.OpenFile(fmt.Sprintf("/proc/self/fd/%d", file), os.O_RDONLY|unix.O_NONBLOCK|unix.O_NOCTTY, 0)
	if err != nil {
		return nil, fmt.Errorf("reading %s/%s: %w", root, name, err)
	}
	return f, nil
}

// plain reports what keeps a file from being read: it must be a regular one of
// a sane size, and of no file system whose files are made by the kernel as they
// are read. Those may be endless, or say what only root may know.
func plain(file, most int) error {
	var st unix.Stat_t
	if err := unix.Fstat(file, &st); err != nil {
		return err
	}
	if st.Mode&unix.S_IFMT != unix.S_IFREG {
		return fmt.Errorf("%w: mode %o", ErrNotPlain, st.Mode)
	}
	if st.Size > int64(most) {
		return fmt.Errorf("%w: %d bytes, at most %d", ErrTooLarge, st.Size, most)
	}
	var on unix.Statfs_t
	if err := unix.Fstatfs(file, &on); err != nil {
		return err
	}
	switch int64(on.Type) {
	case unix.PROC_SUPER_MAGIC, unix.SYSFS_MAGIC, unix.DEBUGFS_MAGIC, unix.TRACEFS_MAGIC,
		unix.CGROUP_SUPER_MAGIC, unix.CGROUP2_SUPER_MAGIC, unix.BPF_FS_MAGIC, unix.SECURITYFS_MAGIC,
		unix.PSTOREFS_MAGIC, unix.EFIVARFS_MAGIC, unix.SELINUX_MAGIC:
		return fmt.Errorf("%w: file system %#x", ErrNotPlain, on.Type)
	}
	return nil
}
