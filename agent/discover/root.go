package discover

import (
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// openInRoot opens a regular file for reading at name below root, the root directory of another
// process.
//
// openat2 keeps the lookup below that root and off magic links such as those in its /proc,
// which could lead anywhere. Mounts may be crossed: a pod's /etc/hosts is one. The file is
// first opened with O_PATH, which only names it, then examined, and then opened for reading by
// way of that descriptor. Opening a device or a FIFO for reading can block or have effects, and
// between a check by path and an open by path the process could exchange the file.
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
	// Without O_NONBLOCK the open would wait for the holder of a lease (fcntl F_SETLEASE).
	f, err := os.OpenFile(fmt.Sprintf("/proc/self/fd/%d", file), os.O_RDONLY|unix.O_NONBLOCK|unix.O_NOCTTY, 0)
	if err != nil {
		return nil, fmt.Errorf("reading %s/%s: %w", root, name, err)
	}
	return f, nil
}

// plain returns an error for a file that must not be read: anything but a regular file, one
// larger than most bytes, or one on a pseudo file system. Files there are made as they are
// read, so they may be endless, or reveal what only root may know.
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
