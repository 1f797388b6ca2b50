// Who lives below a seccomp profile that allows everything: keyrings, cgroups, namespaces, mounts, and others' descriptors. Each
// command prints `held: WHAT` for what was refused, `BREACH: WHAT` for what was not, or how far it came, for others to judge.
// None takes more than a part of what the machine has.
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/keyctl.h>
#include <sched.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <unistd.h>

static void say(const char *format, ...) {
    va_list args;
    va_start(args, format);
    vprintf(format, args);
    va_end(args);
    putchar('\n');
    fflush(stdout);
}

static void stay(void) {
    for (;;) pause();
}

/* ---- keyrings ---------------------------------------------------------------------------------------------------------- */

static long keyctl(int operation, long a, long b, long c, long d) {
    return syscall(SYS_keyctl, operation, a, b, c, d);
}

// Who has the keyrings of its uid linked to its own may do with what is in them as with its own.
static void link_keyrings(void) {
    long own = keyctl(KEYCTL_GET_KEYRING_ID, KEY_SPEC_PROCESS_KEYRING, 1, 0, 0);
    if (own < 0) say("held: a keyring of its own: %m");
    keyctl(KEYCTL_LINK, KEY_SPEC_USER_KEYRING, KEY_SPEC_PROCESS_KEYRING, 0, 0);
    keyctl(KEYCTL_LINK, KEY_SPEC_USER_SESSION_KEYRING, KEY_SPEC_PROCESS_KEYRING, 0, 0);
}

// keep-key NAME TEXT: a key in the keyring of the caller's uid, for some minutes, should nobody forget it.
static void keep_key(char **args) {
    link_keyrings();
    long key = syscall(SYS_add_key, "user", args[0], args[1], strlen(args[1]), KEY_SPEC_USER_KEYRING);
    if (key < 0) say("no key: %m");
    else if (keyctl(KEYCTL_SET_TIMEOUT, key, 600, 0, 0)) say("no timeout: %m");
    else say("kept");
}

// forget-key NAME: takes it away, and the keyrings that the kernel has made for the uid.
static void forget_key(char **args) {
    long rings[] = {KEY_SPEC_USER_KEYRING, KEY_SPEC_USER_SESSION_KEYRING};
    // To ask for one may make the other: first which they are.
    for (int n = 0; n < 2; n++) rings[n] = keyctl(KEYCTL_GET_KEYRING_ID, rings[n], 0, 0, 0);
    link_keyrings();
    long key = keyctl(KEYCTL_SEARCH, KEY_SPEC_PROCESS_KEYRING, (long)"user", (long)args[0], 0);
    if (key < 0 || keyctl(KEYCTL_INVALIDATE, key, 0, 0, 0)) say("it stays for a while: %m");
    for (int n = 0; n < 2; n++)
        if (keyctl(KEYCTL_INVALIDATE, rings[n], 0, 0, 0)) say("a keyring stays: %m");
    say("forgotten");
}

static void read_key(const char *how, long key) {
    char text[256];
    long length = key < 0 ? key : keyctl(KEYCTL_READ, key, (long)text, sizeof text - 1, 0);
    if (length < 0) {
        say("held: %s: %m", how);
        return;
    }
    text[length] = 0;
    say("BREACH: %s: a key of another says: %s", how, text);
}

// seek-key NAME
static void seek_key(char **args) {
    link_keyrings();
    read_key("keyctl", keyctl(KEYCTL_SEARCH, KEY_SPEC_PROCESS_KEYRING, (long)"user", (long)args[0], 0));
    // Without a word for the kernel's helper, which then does not run.
    read_key("request_key", syscall(SYS_request_key, "user", args[0], NULL, 0));
}

/* ---- namespaces of its own --------------------------------------------------------------------------------------------- */

static int put(const char *path, const char *text) {
    int fd = open(path, O_WRONLY);
    int done = fd >= 0 && write(fd, text, strlen(text)) == (ssize_t)strlen(text);
    if (fd >= 0) close(fd);
    return done;
}

// Root of a user namespace, as everybody may be, and of others that are its.
static int be_root(int more) {
    char line[64];
    uid_t uid = geteuid();
    gid_t gid = getegid();
    if (unshare(CLONE_NEWUSER | more)) {
        say("held: a user namespace: %m");
        return 0;
    }
    put("/proc/self/setgroups", "deny");
    snprintf(line, sizeof line, "0 %u 1", uid);
    if (!put("/proc/self/uid_map", line)) say("not mapped: %m");
    snprintf(line, sizeof line, "0 %u 1", gid);
    put("/proc/self/gid_map", line);
    return 1;
}

// cgroups DEPTH: one in the other, with names that make the path of the deepest longer than any call takes.
static void cgroups(char **args) {
    char name[201];
    int deep = atoi(args[0]), made = 0;
    memset(name, 'd', 200);
    name[200] = 0;
    mkdir("/tmp/cgroups", 0755);
    if (be_root(CLONE_NEWNS | CLONE_NEWCGROUP)) {
        if (mount("none", "/tmp/cgroups", "cgroup2", 0, NULL)) say("held: mount: %m");
        else if (!chdir("/tmp/cgroups"))
            while (made < deep && !mkdir(name, 0755) && !chdir(name)) made++;
    }
    say("made %d cgroups below each other: %m", made);
    stay();
}

// uts COUNT: keeps so many, or as many as there are to be had.
static void uts(char **args) {
    int count = atoi(args[0]), made = 0;
    struct rlimit files;
    getrlimit(RLIMIT_NOFILE, &files);
    files.rlim_cur = files.rlim_max;
    setrlimit(RLIMIT_NOFILE, &files);
    if (be_root(0))
        while (made < count && !unshare(CLONE_NEWUTS) && open("/proc/self/ns/uts", O_RDONLY) >= 0) made++;
    say("made %d namespaces: %m", made);
    stay();
}

// mounts COUNT: a file mounted on itself so often, at a path that procfs writes four times as long as it is; then 8 MiB in a file
// without a name, for which its node looks through all that it has.
static void mounts(char **args) {
    static char block[1 << 20];
    char name[256];
    int count = atoi(args[0]), made = 0;
    memset(name, '\n', 255);
    name[255] = 0;
    int hidden = open("/tmp/hidden", O_RDWR | O_CREAT | O_EXCL, 0600);
    mkdir("/tmp/mounts", 0755);
    if (be_root(CLONE_NEWNS)) {
        if (mount("none", "/tmp/mounts", "tmpfs", 0, NULL) || chdir("/tmp/mounts")) say("held: mount: %m");
        else {
            for (int n = 0; n < 15; n++)
                if (mkdir(name, 0755) || chdir(name)) say("no folder: %m");
            close(open("f", O_WRONLY | O_CREAT, 0600));
            while (made < count && !mount("f", "f", NULL, MS_BIND, NULL)) made++;
        }
    }
    say("made %d mounts: %m", made);
    if (hidden < 0 || unlink("/tmp/hidden")) say("no file: %m");
    memset(block, 7, sizeof block);
    for (int n = 0; n < 8; n++)
        if (write(hidden, block, sizeof block) != sizeof block) say("no room: %m");
    fsync(hidden);
    stay();
}

/* ---- descriptors of others --------------------------------------------------------------------------------------------- */

#ifndef SO_PEERPIDFD
#define SO_PEERPIDFD 77
#endif

static struct sockaddr_un at(const char *path) {
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    strncpy(address.sun_path, path, sizeof address.sun_path - 1);
    return address;
}

// listen PATH TEXT: has a file without a name that says something, and listens.
static void listen_at(char **args) {
    struct sockaddr_un own = at(args[0]);
    int file = open("/tmp/own", O_RDWR | O_CREAT | O_EXCL, 0600), fd = socket(AF_UNIX, SOCK_STREAM, 0);
    if (file < 0 || unlink("/tmp/own") || write(file, args[1], strlen(args[1])) < 0) say("no file: %m");
    unlink(args[0]);
    if (bind(fd, (void *)&own, sizeof own) || listen(fd, 4)) say("no socket: %m");
    say("listening");
    stay();
}

// take PATH: who listens there, by the socket, and what he has open.
static void take(char **args) {
    struct sockaddr_un to = at(args[0]);
    char text[256];
    int fd = socket(AF_UNIX, SOCK_STREAM, 0), pidfd = -1;
    socklen_t length = sizeof pidfd;
    if (connect(fd, (void *)&to, sizeof to)) {
        say("no connection: %m");
        return;
    }
    if (getsockopt(fd, SOL_SOCKET, SO_PEERPIDFD, &pidfd, &length)) {
        say("held: this kernel does not say who listens: %m");
        return;
    }
    for (int n = 0; n < 16; n++) {
        int taken = syscall(SYS_pidfd_getfd, pidfd, n, 0);
        // Which of them there are is told to nobody but who may.
        if (taken < 0 && errno == EBADF) continue;
        if (taken < 0) {
            say("held: descriptor %d: %m", n);
            return;
        }
        ssize_t read = pread(taken, text, sizeof text - 1, 0);
        text[read < 0 ? 0 : read] = 0;
        say("BREACH: descriptor %d of a process of another Pod was taken: %s", n, text);
    }
}

static const struct { const char *name; void (*run)(char **); int args; } commands[] = {
    {"keep-key", keep_key, 2}, {"seek-key", seek_key, 1}, {"forget-key", forget_key, 1}, {"cgroups", cgroups, 1},
    {"uts", uts, 1},           {"mounts", mounts, 1},     {"listen", listen_at, 2},      {"take", take, 1},
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
