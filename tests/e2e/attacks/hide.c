// Who hides what he has on a disk: each command writes 8 MiB that a walk over files does not come by, and then waits.
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/inotify.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <unistd.h>

static void fail(const char *what) {
    perror(what);
    exit(1);
}

static void say(const char *what) {
    puts(what);
    fflush(stdout);
}

static void fill(int fd) {
    static char block[1 << 20];
    memset(block, 7, sizeof block);
    for (int n = 0; n < 8; n++)
        if (write(fd, block, sizeof block) != sizeof block) fail("write");
    if (fsync(fd)) fail("fsync");
}

static int deleted(const char *path) {
    int fd = open(path, O_RDWR | O_CREAT | O_EXCL, 0600);
    if (fd < 0 || unlink(path)) fail(path);
    fill(fd);
    return fd;
}

static struct msghdr *message(int fd) {
    static char byte, room[CMSG_SPACE(sizeof(int))];
    static struct iovec data = {&byte, 1};
    static struct msghdr all;
    all = (struct msghdr){.msg_iov = &data, .msg_iovlen = 1, .msg_control = room, .msg_controllen = sizeof room};
    struct cmsghdr *head = CMSG_FIRSTHDR(&all);
    *head = (struct cmsghdr){.cmsg_len = CMSG_LEN(sizeof fd), .cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS};
    memcpy(CMSG_DATA(head), &fd, sizeof fd);
    return &all;
}

// In the network namespace, which all containers of a Pod share.
static struct sockaddr_un name(void) {
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    strcpy(address.sun_path + 1, "hand-over");
    return address;
}

// receive: has what somebody hands over.
static void receive(char **args) {
    (void)args;
    struct sockaddr_un at = name();
    int fd = socket(AF_UNIX, SOCK_DGRAM, 0);
    if (bind(fd, (void *)&at, sizeof at)) fail("bind");
    if (recvmsg(fd, message(-1), 0) < 0) fail("recvmsg");
    say("received");
}

// send FILE: hands a deleted file over, and keeps nothing of it.
static void send_it(char **args) {
    struct sockaddr_un to = name();
    int fd = socket(AF_UNIX, SOCK_DGRAM, 0), file = deleted(args[0]);
    for (int tries = 0; connect(fd, (void *)&to, sizeof to); tries++) {
        if (tries > 500) fail("connect");
        usleep(20000);
    }
    if (sendmsg(fd, message(file), 0) < 0) fail("sendmsg");
    close(file), close(fd);
    say("sent");
}

static void *stay(void *nothing) {
    for (;;) pause();
    return nothing;
}

// headless FILE: has a deleted file open in a thread that outlives the first one.
static void headless(char **args) {
    pthread_t thread;
    deleted(args[0]);
    pthread_create(&thread, NULL, stay, NULL);
    say("headless");
    syscall(SYS_exit, 0);
}

// move FOLDER: has a full folder where the walk has been already.
static void move(char **args) {
    static char names[256][256], from[600], to[600], path[1200];
    int count = 0;
    if (chdir(args[0])) fail(args[0]);
    for (int folder = 0; folder < 200; folder++) {
        snprintf(path, sizeof path, "%d", folder);
        mkdir(path, 0700);
        for (int file = 0; file < 30; file++) {
            snprintf(path, sizeof path, "%d/%d", folder, file);
            close(open(path, O_CREAT | O_WRONLY, 0600));
        }
    }
    DIR *all = opendir(".");
    for (struct dirent *entry; count < 256 && (entry = readdir(all));)
        if (entry->d_name[0] != '.') strcpy(names[count++], entry->d_name);
    closedir(all);
    // A walk takes the last one first.
    snprintf(from, sizeof from, "%s/full", names[0]);
    snprintf(to, sizeof to, "%s/full", names[count - 1]);
    mkdir(from, 0700);
    snprintf(path, sizeof path, "%s/big", from);
    int big = open(path, O_CREAT | O_WRONLY, 0600);
    fill(big), close(big);
    int watch = inotify_init1(IN_CLOEXEC | IN_NONBLOCK);
    int middle = inotify_add_watch(watch, names[count - 20], IN_OPEN);
    int last = inotify_add_watch(watch, names[0], IN_CLOSE_NOWRITE);
    if (middle < 0 || last < 0) fail("inotify");
    say("moves");
    for (;;) {
        char events[4096] __attribute__((aligned(8)));
        ssize_t length = read(watch, events, sizeof events);
        for (char *at = events; length > 0 && at < events + length;) {
            struct inotify_event *event = (void *)at;
            if (event->wd == middle) rename(from, to);
            else if (event->wd == last) rename(to, from);
            at += sizeof *event + event->len;
        }
    }
}

static const struct { const char *name; void (*run)(char **); int args; } commands[] = {
    {"receive", receive, 0}, {"send", send_it, 1}, {"headless", headless, 1}, {"move", move, 1},
};

int main(int count, char **args) {
    for (unsigned i = 0; count > 1 && i < sizeof commands / sizeof *commands; i++) {
        if (strcmp(args[1], commands[i].name) || count - 2 < commands[i].args) continue;
        commands[i].run(args + 2);
        for (;;) pause();
    }
    fprintf(stderr, "no such command, or too few arguments\n");
    return 2;
}
